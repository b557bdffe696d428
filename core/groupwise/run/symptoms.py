"""Symptoms: what in the metrics of steps a person should hear of, once."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

RATIO_TOLERANCE = 0.1
"""A ratio error above this share of the clip range gets a warning (law 2)."""
STEPS_WITHOUT_VARIANCE = 10
"""As many steps in a row from which nothing was learned get one."""


class Symptoms:
    """Looks at every step's metrics; each warning comes once.

    clip: the clip range that a ratio error is measured against.
    """

    def __init__(self, clip: float) -> None:
        self.clip, self.limit = clip, RATIO_TOLERANCE * clip
        self.without_variance = 0
        self._warned: set[str] = set()

    def look(self, metrics: Mapping[str, Any], culprit: str = "") -> Iterator[str]:
        """Warnings that this step gives reason for; culprit: what was not finite, if anything."""
        found = {
            "ratio": self._ratio(metrics),
            "unscored": self._unscored(metrics),
            "variance": self._variance(metrics),
            "skipped": self._skipped(metrics, culprit),
            "rounding": self._rounding(metrics),
        }
        for name, warning in found.items():
            if warning and name not in self._warned:
                self._warned.add(name)
                yield f"warning: {warning}"

    def _ratio(self, metrics: Mapping[str, Any]) -> str | None:
        if not metrics["ratio_error"] > self.limit:
            return None
        return (
            f"the probability ratio at the first update is off by {metrics['ratio_error']:.2g} "
            f"(limit {self.limit:.2g}). Sampling and training disagree: bf16 rounding, dropout, or "
            f"a kernel that depends on the batch are the usual causes"
        )

    def _unscored(self, metrics: Mapping[str, Any]) -> str | None:
        if not math.isnan(metrics["reward"]):
            return None
        return (
            "no completion of this step has a reward: all are None, or failed and were skipped. Do "
            "the rewards apply to these prompts?"
        )

    def _variance(self, metrics: Mapping[str, Any]) -> str | None:
        self.without_variance = self.without_variance + 1 if metrics["zero_variance"] == 1 else 0
        if self.without_variance < STEPS_WITHOUT_VARIANCE:
            return None
        return (
            f"in the last {self.without_variance} steps all completions of every prompt had the "
            f"same reward (now {metrics['reward']:.3g} on average), so nothing was learned. Look "
            f"at samples/before.jsonl: does the reward read what the model writes? If it does, "
            f"easier or harder prompts, a reward with partial credit, a higher temperature or a "
            f"larger group_size may help"
        )

    def _skipped(self, metrics: Mapping[str, Any], culprit: str) -> str | None:
        if not metrics.get("skipped_updates"):
            return None
        return (
            f"an update was skipped, since its gradient is not finite; the first tensor that is "
            f"not is {culprit}. skipped_updates in metrics.jsonl counts them"
        )

    def _rounding(self, metrics: Mapping[str, Any]) -> str | None:
        error = metrics.get("log_prob_error", 0.0)
        if not error > self.clip:
            return None
        return (
            f"in this precision log-probs are {error:.1e} from float32's, {error / self.clip:.1f} "
            f"times the clip range of {self.clip:g}: from a step's second update on, rounding is "
            f"clipped as if it were learning. Another policy.precision rounds less"
        )
