"""TimeLeft: how long a run will still take, from how long its last steps took."""

from collections import deque
from statistics import fmean

from groupwise.config.sections import RunConfig

LAST = 10
"""Steps whose mean is taken: enough to even out, few enough to follow completions that grow."""


class TimeLeft:
    """The seconds that remain after a step:

        steps to come * mean of the last steps + evaluations to come * the last evaluation

    where steps and the evaluations between them take no longer than `train.minutes` leaves.
    Evaluations count from the first that was made: a resumed run makes none before its steps.
    """

    def __init__(self, config: RunConfig) -> None:
        self.steps, self.every = config.train.steps, config.evaluation.every
        self.limit = config.train.minutes
        self.last: deque[float] = deque(maxlen=LAST)
        self.evaluation = 0.0

    def evaluated(self, seconds: float) -> None:
        """An evaluation took so long."""
        self.evaluation = seconds

    def after(self, step: int, seconds: float, *, elapsed: float) -> float:
        """The seconds left after a step that took `seconds`, its evaluation not among them.

        elapsed: seconds that count against `train.minutes`.
        """
        self.last.append(seconds)
        evaluations = (self.steps - 1) // self.every - step // self.every if self.every else 0
        left = (self.steps - step) * fmean(self.last) + max(evaluations, 0) * self.evaluation
        if self.limit is not None:
            left = min(left, 60 * self.limit - elapsed)
        return max(left, 0.0) + self.evaluation
