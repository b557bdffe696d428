"""Outcome against process supervision on the sums of examples/arithmetic.yaml.

    python tests/benchmarks/process.py --seeds 0 1 2 --jobs 15 --out runs/process

Everything but the rewards is the same: prompts, groups, learning rate, the small reward for the
form. Outcome: is the answer right. Process: is each step right (`sum_steps`), and the answer has no
part in learning, only in what is measured. Both: the sum of their advantages. Process is in two
forms: `steps: rewards` is DeepSeekMath's, `steps: returns` the one with a baseline by step.
"""

from pathlib import Path

from race import ROOT, Race, main

FORM = "{name: think_answer_format, weight: 0.1}"
STEPS = "{name: sum_steps, inside: think}"


def rewards(outcome: int, steps: str = "") -> str:
    """The verifier comes first in any case: it says what is right, and accuracy is its mean."""
    parts = [f"{{name: reasoning_gym, weight: {outcome}}}", FORM, *([steps] if steps else [])]
    return f"rewards=[{', '.join(parts)}]"


RETURNS = "algorithm={name: grpo, steps: returns}"
RACE = Race(
    config=Path(ROOT / "examples" / "arithmetic.yaml"),
    variants={
        "outcome": [rewards(1)],
        "process": [rewards(0, STEPS)],
        "process, returns": [rewards(0, STEPS), RETURNS],
        "both": [rewards(1, STEPS)],
        "both, returns": [rewards(1, STEPS), RETURNS],
    },
    goal=0.85,
    common=["evaluation.every=0", "evaluation.prompts=200", "evaluation.greedy=false"],
)

if __name__ == "__main__":
    main(RACE)
