"""A beta that keeps the KL at a target, against one that is a number.

    python tests/benchmarks/kl_target.py --seeds 0 1 2 --out runs/kl_target

KL, beta and reward are medians over the last ten steps.
"""

from pathlib import Path

from race import Race, main

LIMITED = "target: 0.03, start: 0.1, least: 0.05, gain: 0.5, clip: 0.5"
RACE = Race(
    config=Path(__file__).parents[2] / "examples" / "arithmetic.yaml",
    variants={
        "beta 0.001": ["algorithm={name: grpo, beta: 0.001}"],
        "target 0.03": ["algorithm={name: grpo, beta: {target: 0.03, gain: 0.5, clip: 0.5}}"],
        "target 0.03, least 0.05": [f"algorithm={{name: grpo, beta: {{{LIMITED}}}}}"],
    },
    goal=0.6,
    common=(
        *("train.steps=30", "train.groups_per_step=8", "train.group_size=8"),
        *("evaluation.prompts=0", "evaluation.every=0"),
    ),
    lately={"KL": "kl", "beta": "beta", "reward": "reward"},
)

if __name__ == "__main__":
    main(RACE)
