"""Training on the best and worst of a group, or on a share of the denoising steps, against all.

    python tests/benchmarks/extremes.py group --seeds 0 1 2 --out runs/extremes_group
    python tests/benchmarks/extremes.py steps --seeds 0 1 2 --out runs/extremes_steps

All variants make equally many steps with equally many prompts. Seconds and the reward are
medians over the last ten steps.
"""

import sys
from pathlib import Path

from race import Race, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "shapes.yaml"
COMMON = (
    *("train.steps=60", "train.groups_per_step=4", "train.minutes=null", "watch=[]"),
    *("evaluation.prompts=100", "evaluation.samples=4", "evaluation.every=0"),
)
LATELY = {
    "reward": "reward",
    "seconds of sampling": "time/sample",
    "seconds of the update": "time/update",
    "denoising steps trained on": "trained_decisions",
}
RACES = {
    "group": Race(
        config=EXAMPLE,
        variants={
            "all of 24": [],
            "best and worst 8 of 24": ["train.keep={extremes: 8}"],
            "groups of 8": ["train.group_size=8"],
        },
        goal=0.6,
        common=COMMON,
        lately=LATELY,
    ),
    "steps": Race(
        config=EXAMPLE,
        variants={
            "all nine steps": ["policy.window={kind: all}"],
            "five of the nine": ["policy.window={share: 0.6}"],
        },
        goal=0.6,
        common=(*COMMON, "train.group_size=12"),
        lately=LATELY,
    ),
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in RACES:
        sys.exit(f"expected one of {', '.join(RACES)} as the first argument")
    main(RACES[sys.argv.pop(1)])
