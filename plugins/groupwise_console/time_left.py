"""TimeLeft: an estimate of the seconds until a run ends."""

from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any

LAST = 10
"""Steps whose mean time is used: enough against noise, few enough to follow growing completions."""


class TimeLeft:
    """The remaining seconds after a step:

        remaining steps * mean time of the last steps
            + remaining evaluations * time of the last evaluation

    Steps and the evaluations between them are limited by `train.minutes`. Before the first
    evaluation of this process (a resumed run starts without one) evaluations count as 0 seconds.

    settings: the run's configuration by dotted key.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.steps, self.every = settings["train.steps"], settings["evaluation.every"]
        self.limit = settings.get("train.minutes")
        self.last: deque[float] = deque(maxlen=LAST)
        self.evaluation = 0.0

    def after(self, step: int, seconds: float, *, elapsed: float, evaluation: float = 0.0) -> float:
        """The seconds left after a step that took `seconds`, and an evaluation after it.

        elapsed: seconds that count for the limit `train.minutes`; evaluation: seconds, 0 if the
        step was not evaluated.
        """
        self.last.append(seconds)
        self.evaluation = evaluation or self.evaluation
        evaluations = (self.steps - 1) // self.every - step // self.every if self.every else 0
        left = (self.steps - step) * fmean(self.last) + max(evaluations, 0) * self.evaluation
        if self.limit is not None:
            left = min(left, 60 * self.limit - elapsed)
        return max(left, 0.0) + self.evaluation
