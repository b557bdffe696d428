"""Prompts weighted by success, replayed completions, both, and neither.

    python tests/benchmarks/data.py arithmetic --seeds 0 1 2 --jobs 16 --out runs/data_arithmetic
    python tests/benchmarks/data.py shapes --seeds 0 1 2 --jobs 16 --out runs/data_shapes

Weighted prompts are a biased sample, so all variants are judged on the same held-out prompts. Sums
have four to eight terms, while the base model has learned four to six: of 256 prompts some are soon
always right and others rarely. A quarter of the scenes of the example is used, so that each is
drawn several times.
"""

import sys
from pathlib import Path

from race import Race, main

EXAMPLES = Path(__file__).parents[2] / "examples"
WEIGHTING, REPLAY = "prompts.weighting={}", "train.replay={}"
VARIANTS = {
    "neither": [],
    "weighting": [WEIGHTING],
    "replay": [REPLAY],
    "both": [WEIGHTING, REPLAY],
}
SUMS = "{min_terms: 4, max_terms: 8, min_digits: 2, max_digits: 2}"
TEMPLATE = 'template: "{question}\\n"'
HELD_OUT = f"{{name: reasoning_gym, task: chain_sum, seed: 1, options: {SUMS}, {TEMPLATE}}}"
RACES = {
    "arithmetic": Race(
        config=EXAMPLES / "arithmetic.yaml",
        variants=VARIANTS,
        goal=0.7,
        common=[
            "train.steps=120",
            f"prompts.options={SUMS}",
            "prompts.size=256",
            "policy.max_new_tokens=112",  # enough for eight terms
            f"evaluation.source={HELD_OUT}",
            "evaluation.prompts=200",
            "evaluation.greedy=false",
            "evaluation.every=5",
            "train.minutes=7",
        ],
        held_out=True,
    ),
    "shapes": Race(
        config=EXAMPLES / "shapes.yaml",
        variants=VARIANTS,
        goal=0.7,
        common=[
            "train.steps=60",
            "train.schedule=constant",
            "prompts.held_out=0.75",  # so that prompts are drawn more than once
            "evaluation.prompts=100",
            "evaluation.samples=1",
            "evaluation.every=10",
            "train.minutes=7",
        ],
        held_out=True,
    ),
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in RACES:
        sys.exit(f"expected one of {', '.join(RACES)} as the first argument")
    main(RACES[sys.argv.pop(1)])
