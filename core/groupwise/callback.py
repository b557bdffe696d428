"""Callback: watch a run without changing it."""

from collections.abc import Mapping
from typing import Any

from groupwise.evaluation import Evaluation
from groupwise.policy import Policy


class Callback:
    """Override the methods that you need. An exception in a callback stops the run."""

    def on_start(self, policy: Policy) -> None:
        """Called before the first evaluation; in a run of several policies, once for each."""

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Called after each step, with the metrics that metrics.jsonl gets."""

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Called after each evaluation, first and last too, with its metrics and completions."""

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Called after the last evaluation, with the content of result.json."""
