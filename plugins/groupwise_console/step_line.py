"""StepLine: the last finished step in a line: reward, accuracy, speed and time left."""

import math
import time
from collections.abc import Collection, Mapping
from typing import Any

from groupwise.kit.metric_names import titled

SUMMARY = 62
"""Columns of all but the bar: reward, accuracy, speed and time left."""


def listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {value:{_form(value)}}" for label, value in values.items())


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _form(value: float) -> str:
    return ".3f" if abs(value) < 1e6 else ".3g"  # .3f of 1e300 has 300 digits


class StepLine:
    """As a string: `step 12/60  reward 0.603  accuracy (math) 0.55  9,120 tokens/s  left 0:01:10`.

    steps: of the run; done: those that are; bar: columns for a bar, 0 if there is no room.
    """

    def __init__(self) -> None:
        self.begin(steps=0, unit="", done=0, labels=(), width=0, accuracy=None)

    def begin(
        self,
        *,
        steps: int,
        unit: str,
        done: int,
        labels: Collection[str],
        width: int,
        accuracy: str | None,
    ) -> None:
        """width: columns of a line; labels: of several policies; accuracy: the reward that tells
        right from wrong."""
        self.steps, self.done, self.unit, self.labels = steps, done, unit, labels
        self._accuracy = accuracy
        self._metrics: Mapping[str, Any] | None = None
        self._left = self._at = 0.0
        self._room = width - len(f"step {steps}/{steps}  ")
        # Without a bar if the line is too short for it, or shows several rewards.
        spare = 0 if labels else min(self._room - SUMMARY - len(accuracy or "") - 4, 24)
        self.bar = spare if spare >= 4 else 0

    def step(self, step: int, metrics: Mapping[str, Any], left: float) -> None:
        self.done, self._metrics = step, metrics
        self._left, self._at = left, time.monotonic()

    @property
    def is_empty(self) -> bool:
        """Whether there is no step yet."""
        return self._metrics is None

    @property
    def place(self) -> str:
        return f"step {self.done}/{self.steps}"

    @property
    def summary(self) -> str:
        """What the step was like, and the time that is left now."""
        metrics = self._metrics or {}
        accuracy, mean = metrics.get("accuracy", math.nan), metrics["reward"]
        reward = f"reward {mean:{_form(mean)}}"
        of_labels = {n: metrics[f"{n}/reward"] for n in self.labels if f"{n}/reward" in metrics}
        of_labels |= {n.partition("/")[2]: x for n, x in metrics.items() if n[:7] == "reward/"}
        left = max(0.0, self._left - (time.monotonic() - self._at))
        parts = [
            "" if math.isnan(accuracy) else f"{titled('accuracy', self._accuracy)} {accuracy:.2f}",
            f"{failed:.0f} failed" if (failed := metrics.get("failed", 0)) else "",
            f"{metrics['decisions_per_second']:,.0f} {self.unit}/s",
            f"left {clock(left)}",
        ]
        rest = "  ".join(filter(None, parts))
        whole = f"{reward} ({listed(of_labels)})  {rest}"
        return whole if of_labels and len(whole) <= self._room else f"{reward}  {rest}"

    def __str__(self) -> str:
        return f"{self.place}  {self.summary}"
