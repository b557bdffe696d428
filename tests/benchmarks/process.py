"""Outcome against process supervision on the sums of examples/arithmetic.yaml.

    python tests/benchmarks/process.py --seeds 0 1 2 --jobs 15 --out runs/process

Only the rewards differ; prompts, groups, learning rate and the small reward for the format are the
same. Outcome: is the answer right. Process: is each step right (`sum_steps`); the answer is only
measured. Both: the sum of their advantages. There are two forms of process supervision: `steps:
rewards` is that of DeepSeekMath, `steps: returns` has a baseline for each step.
"""

from pathlib import Path

from race import ROOT, Race, main

FORMAT = "{name: think_answer_format, weight: 0.1}"
STEPS = "{name: sum_steps, inside: think}"


def rewards(outcome: int, steps: str = "") -> str:
    """The verifier is always the first reward, since accuracy is measured by the first one."""
    parts = [f"{{name: reasoning_gym, weight: {outcome}}}", FORMAT, *([steps] if steps else [])]
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
