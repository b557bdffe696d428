"""Prompts weighted by success and replayed completions, compared with neither.

    python tests/benchmarks/data.py arithmetic --seeds 0 1 2 --out runs/data_arithmetic
    python tests/benchmarks/data.py shapes --seeds 0 1 2 --out runs/data_shapes

The accuracy of weighted prompts is no fair sample, so all are judged on held-out prompts drawn
alike. Sums are of four to eight terms, of which the base model has learned four to six: of 256
prompts some are soon always right, and those of seven and eight terms never are, so that 0.6 is the
most to be reached. Groups have four completions, so that some have no right one at first. Scenes
are a quarter of the example's, so that each comes up several times; they are not replayed, since a
group of 24 pictures nearly always has a right one.
"""

import sys
from pathlib import Path

from race import Race, main

EXAMPLES = Path(__file__).parents[2] / "examples"
WEIGHTING, REPLAY = "prompts.weighting={}", "train.replay={}"
SUMS = "{min_terms: 4, max_terms: 8, min_digits: 2, max_digits: 2}"
TEMPLATE = 'template: "{question}\\n"'
HELD_OUT = f"{{name: reasoning_gym, task: chain_sum, seed: 1, options: {SUMS}, {TEMPLATE}}}"
RACES = {
    "arithmetic": Race(
        config=EXAMPLES / "arithmetic.yaml",
        variants={
            "neither": [],
            "weighting": [WEIGHTING],
            "replay": [REPLAY],
            "both": [WEIGHTING, REPLAY],
        },
        goal=0.5,
        common=[
            "train.steps=50",
            "train.groups_per_step=64",
            "train.group_size=4",
            f"prompts.options={SUMS}",
            "prompts.size=256",
            "policy.max_new_tokens=112",  # enough for eight terms
            f"evaluation.source={HELD_OUT}",
            "evaluation.prompts=200",
            "evaluation.greedy=false",
            "evaluation.every=5",
        ],
        held_out=True,
    ),
    "shapes": Race(
        config=EXAMPLES / "shapes.yaml",
        variants={"neither": [], "weighting": [WEIGHTING]},
        goal=0.7,
        common=[
            "train.steps=60",
            "train.schedule=constant",
            "prompts.held_out=0.75",  # so that prompts are drawn more than once
            "evaluation.prompts=100",
            "evaluation.samples=1",
            "evaluation.every=10",
            "train.minutes=3",
        ],
        held_out=True,
    ),
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in RACES:
        sys.exit(f"expected one of {', '.join(RACES)} as the first argument")
    main(RACES[sys.argv.pop(1)])
