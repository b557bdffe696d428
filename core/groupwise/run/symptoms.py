"""Symptoms: what in the metrics of steps a person should hear of, once."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.algorithm import Algorithm
from groupwise.training.step_metrics import UNDEFINED

STEPS_WITHOUT_VARIANCE = 10
"""As many steps in a row from which nothing was learned get one."""


class Symptoms:
    """Looks at every step's metrics; each warning comes once.

    algorithm: says how far the sampler's log-probs may be from the policy's, and may warn itself.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.without_variance = 0
        self._warned: set[str] = set()

    def look(self, metrics: Mapping[str, Any], culprit: str = "") -> Iterator[str]:
        """Warnings that this step gives reason for; culprit: what was not finite, if anything."""
        warnings = {
            "mismatch": self._mismatch(metrics),
            "unscored": self._unscored(metrics),
            "variance": self._variance(metrics),
            "skipped": self._skipped(metrics, culprit),
            "algorithm": self.algorithm.look(metrics),
            **self._undefined(metrics),
        }
        for name, warning in warnings.items():
            if warning and name not in self._warned:
                self._warned.add(name)
                yield f"warning: {warning}"

    def failed(self, reasons: Mapping[str, str]) -> Iterator[str]:
        """Rewards that failed and were skipped; reasons: by reward, to be read after its name."""
        for name, reason in reasons.items():
            if f"failed/{name}" not in self._warned:
                self._warned.add(f"failed/{name}")
                yield (
                    f"warning: reward {name!r} {reason.splitlines()[0]}; samples on which it fails "
                    f"are left out (on_error: skip). failed_rewards in metrics.jsonl counts them"
                )

    def _mismatch(self, metrics: Mapping[str, Any]) -> str | None:
        mean, limit = metrics.get("mismatch/mean", 0.0), self.algorithm.mismatch_limit
        if not mean > limit:
            return None
        return (
            f"the sampler's log-probs are {mean:.2g} nats from the policy's on average (limit "
            f"{limit:.2g}), so what is sampled is not quite what is trained: bf16 rounding, "
            f"dropout, another engine or older weights are the usual causes. mismatch/* in "
            f"metrics.jsonl follow it"
        )

    def _unscored(self, metrics: Mapping[str, Any]) -> str | None:
        if not math.isnan(metrics["reward"]):
            return None
        return (
            "no completion of this step has a reward: all are None, or failed and were skipped. Do "
            "the rewards apply to these prompts?"
        )

    def _undefined(self, metrics: Mapping[str, Any]) -> Mapping[str, str]:
        """By reward, so that each has its warning."""
        counts = {
            n.removeprefix(UNDEFINED): v for n, v in metrics.items() if n.startswith(UNDEFINED)
        }
        return {
            f"{UNDEFINED}{name}": (
                f"reward {name!r} returned NaN for {count} completion{'s' * (count != 1)} of this "
                f"step, which is taken for None: it does not apply to them. nan_rewards/{name} in "
                f"metrics.jsonl counts them"
            )
            for name, count in counts.items()
        }

    def _variance(self, metrics: Mapping[str, Any]) -> str | None:
        learned = metrics["zero_variance"] < 1 or metrics.get("replay/share", 0.0) > 0
        self.without_variance = 0 if learned else self.without_variance + 1
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
