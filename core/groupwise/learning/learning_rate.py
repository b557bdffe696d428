"""learning_rate: how the learning rate changes during a run."""

import math

from groupwise.config.train import TrainSection


def factor(settings: TrainSection, step: int, seconds: float) -> float:
    """The factor of the learning rate at a step (0-based): warm-up, then decay.

    seconds: of the run before the step. With a limit in minutes the decay is as far as steps or
    time, whichever is further, so that it ends with the run; `schedule_steps` counts steps alone.
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    steps = settings.schedule_steps or settings.steps
    done = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    if settings.minutes is not None and settings.schedule_steps is None:
        done = max(done, seconds / (60 * settings.minutes))
    done = min(1.0, done)
    if settings.schedule == "linear":
        return 1.0 - done
    if settings.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0
