"""Rounding: the error of log-probs in half precision, measured once per step."""

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from groupwise.rollouts import Rollouts
from groupwise_flow.model.precision import HALF
from groupwise_flow.settings import Precision

METRIC = "log_prob_error"


class Rounding:
    """Mean |log-prob - float32 log-prob| of one rollout, with the same weights."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.metrics = frozenset({METRIC} if precision in HALF else ())
        self._error: float | None = None

    def begin(self) -> None:
        """Begin a step, in which the error is measured again."""
        self._error = None

    def measured(self, rollouts: Rollouts, exact: Callable[[Rollouts], Tensor]) -> Rollouts:
        """Add the fact `log_prob_error`, measured on the step's first rollout that did not fail;
        only in half precision. NaN if all failed.

        exact: computes the log-probs [b, t] in float32.
        """
        if not self.metrics:
            return rollouts
        whole = (~rollouts.failed).nonzero().flatten().tolist()
        if self._error is None and whole:
            one = rollouts.select(whole[:1])
            # The unconditional branch was computed in half precision.
            kept = {k: v for k, v in one.trajectory.items() if k != "unconditional"}
            one = replace(one, trajectory=kept)
            assert one.sampler_log_probs is not None
            self._error = float((one.sampler_log_probs - exact(one)).abs().mean())
        error = math.nan if self._error is None else self._error
        return replace(rollouts, facts={**rollouts.facts, METRIC: [error] * len(rollouts)})
