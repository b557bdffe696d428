"""Two rewards of different units, right and short: summed first, or normalised first.

python tests/benchmarks/several_rewards.py --seeds 0 1 2 --jobs 9 --out runs/several_rewards
"""

from race import ROOT, Race, main

RACE = Race(
    config=ROOT / "examples" / "right_and_short.yaml",
    variants={
        "summed first": ["algorithm=grpo"],
        "summed first, weight found by hand": ["algorithm=grpo", "rewards.1.weight=-0.005"],
        "gdpo": [],
    },
    goal=0.85,
    common=["evaluation.every=0"],
    columns={"tokens": "rewards/token_count"},
)

if __name__ == "__main__":
    main(RACE)
