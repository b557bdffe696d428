"""Schedule: the learning rate over a run."""

import math

from groupwise.config.train import TrainSection


def schedule(settings: TrainSection, step: int) -> float:
    """The factor of the learning rate at a step (0-based): warm-up, then decay."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    if settings.schedule == "linear":
        return 1.0 - done
    if settings.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0
