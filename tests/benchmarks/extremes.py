"""Training on the best and the worst of a group, or on some of the denoising steps, against all.

    python tests/benchmarks/extremes.py group --seeds 0 1 2 --out runs/extremes_group
    python tests/benchmarks/extremes.py steps --seeds 0 1 2 --out runs/extremes_steps

All variants make equally many steps with equally many prompts. The table has the accuracy on
held-out prompts after the last step, and medians of the seconds that a step samples and updates.
"""

import statistics
import sys
from pathlib import Path

from race import Race, folder, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "shapes.yaml"
COMMON = (
    *("train.steps=20", "train.groups_per_step=4", "train.schedule=constant", "train.minutes=null"),
    *("train.learning_rate=3e-4", "watch=[]", "policy.evaluation_steps=10"),
    *("evaluation.prompts=100", "evaluation.samples=1", "evaluation.every=0"),
)
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
    ),
    "steps": Race(
        config=EXAMPLE,
        variants={
            "all nine steps": ["policy.window=all"],
            "a random 60% of them": ["policy.window={kind: share, share: 0.6}"],
        },
        goal=0.6,
        common=(*COMMON, "train.group_size=12"),
    ),
}


def times(race: Race, out: Path, seeds: list[int]) -> str:
    """A line for each variant: medians of seconds over the steps of all seeds."""
    import json

    lines = []
    for title in race.variants:
        steps = [
            json.loads(line)
            for seed in seeds
            for line in (folder(out, title, seed) / "metrics.jsonl").read_text("utf-8").splitlines()
        ]
        steps = [step for step in steps if "time/update" in step]
        medians = {
            name: statistics.median(step[f"time/{name}"] for step in steps)
            for name in ("sample", "reward", "update")
        }
        words = ", ".join(f"{name} {seconds:.2f}" for name, seconds in medians.items())
        rewards = [statistics.mean(s["reward"] for s in steps[-5:])]
        lines.append(f"{title}: {words}; reward of the last five steps of the last seed {rewards}")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in RACES:
        sys.exit(f"expected one of {', '.join(RACES)} as the first argument")
    chosen = RACES[sys.argv.pop(1)]
    main(chosen)
