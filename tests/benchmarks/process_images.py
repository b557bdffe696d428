"""Outcome against process supervision on the scenes of examples/shapes.yaml.

    python tests/benchmarks/process_images.py --seeds 0 1 2 --jobs 2 --out runs/process_images

Outcome: the share of the scene that is in the image. Process: how much of it each denoising step
adds to the image that the model predicts (`per_step`). Both: the sum of the advantages, those of
steps with a baseline for each step.
"""

from pathlib import Path

from race import ROOT, Race, main

STEPS = "{name: per_step, reward: {name: image_contents, mode: partial}}"


def rewards(outcome: int, steps: str = "") -> str:
    """The outcome is always the first reward, since accuracy is the share of its values of 1."""
    parts = [f"{{name: image_contents, mode: partial, weight: {outcome}}}"]
    return f"rewards=[{', '.join([*parts, *([steps] if steps else [])])}]"


RETURNS = "algorithm.steps=returns"
RACE = Race(
    config=Path(ROOT / "examples" / "shapes.yaml"),
    variants={
        "outcome": [rewards(1)],
        "process": [rewards(0, STEPS)],
        "both, returns": [rewards(1, STEPS), RETURNS],
    },
    goal=0.6,
    common=[
        *("train.steps=36", "train.minutes=null"),
        *("train.schedule=constant", "train.checkpoint_minutes=null"),
        *("evaluation.every=0", "evaluation.prompts=50", "evaluation.samples=2"),
    ],
)

if __name__ == "__main__":
    main(RACE)
