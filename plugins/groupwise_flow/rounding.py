"""Rounding: how far half precision puts log-probs off, measured once a step and told."""

import warnings
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from groupwise.rollouts import Rollouts
from groupwise_flow.precision import HALF, Precision

METRIC = "log_prob_error"

_INSTEAD = {
    "bf16": "fp16 rounds to an eighth of it, where the model stays within its range",
    "fp16": "a wider clip range, or float32, leaves it out",
}


class Rounding:
    """The distance of a rollout's log-probs from those of the same weights in float32.

    clip_range: what an algorithm lets pass; a warning tells, once, when rounding is more. None for
        an algorithm that has none.
    """

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.metrics = frozenset({METRIC} if precision in HALF else ())
        self.clip_range: float | None = None
        self._error: float | None = None

    def begin(self) -> None:
        """A new step: measure again."""
        self._error = None

    def measured(self, rollouts: Rollouts, exact: Callable[[Rollouts], Tensor]) -> Rollouts:
        """With the fact `log_prob_error`, that of a step's first rollout, in half precision.

        exact: the log-probs [b, t] in float32.
        """
        if not self.metrics:
            return rollouts
        if self._error is None:
            one = rollouts.select([0])
            # The unconditional branch was computed in half precision.
            kept = {k: v for k, v in one.trajectory.items() if k != "unconditional"}
            one = replace(one, trajectory=kept)
            assert one.log_probs is not None
            self._error = float((one.log_probs - exact(one)).abs().mean())
            self._warn(self._error)
        return replace(rollouts, facts={**rollouts.facts, METRIC: [self._error] * len(rollouts)})

    def _warn(self, error: float) -> None:
        if self.clip_range is None or error <= self.clip_range:
            return
        warnings.warn(
            f"policy.precision: in {self.precision} log-probs are {error:.1e} from float32's, "
            f"{error / self.clip_range:.1f} times the clip range of {self.clip_range:g}, so that "
            f"from a step's second update on rounding is taken for learning and clipped; "
            f"{_INSTEAD[self.precision]}",
            stacklevel=2,
        )
        self.clip_range = None
