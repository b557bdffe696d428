"""Accuracy with completions of 40 tokens: by a constraint, a fixed price, or no bound.

python tests/benchmarks/held_length.py --seeds 0 1 2 --jobs 15 --out runs/held_length
"""

from race import ROOT, Race, main

FIXED = "rewards.1={{name: token_count, weight: {}}}"
RACE = Race(
    config=ROOT / "examples" / "held_length.yaml",
    variants={
        "no bound": [FIXED.format(0)],
        "a price of 0.02 a token": [FIXED.format(-0.02)],
        "at most 40, damping 4": ["rewards.1.constraint.damping=4"],
        "at most 40": [],
    },
    goal=0.75,
    common=["evaluation.every=0"],
    columns={"tokens": "rewards/token_count"},
)

if __name__ == "__main__":
    main(RACE)
