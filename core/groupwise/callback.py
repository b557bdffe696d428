"""Callback: watch a run without changing it."""

from collections.abc import Mapping
from typing import Any

from groupwise.evaluation import Evaluation
from groupwise.policy import Policy


class Callback:
    """Override what you need; a callback that raises stops the run."""

    def on_start(self, policy: Policy) -> None:
        """Before the first evaluation; in a run of several policies with each in turn."""

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """After each step, with what metrics.jsonl gets for it."""

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """After each evaluation, the first and the last included: metrics, and every completion."""

    def on_end(self, result: Mapping[str, Any]) -> None:
        """After the last evaluation, with what result.json gets."""
