"""Axes: from a step and a value to a place in a chart."""

import math
from collections.abc import Iterable

from groupwise_report.wording import tick_labels

BOX = 1000  # width and height of the SVG in its own units


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` intervals between round numbers, from at most `low` to at least `high`."""
    if high - low <= 1e-9 * max(abs(low), abs(high)) + 1e-300:  # a flat line: start at zero
        low, high = min(low, 0.0), max(high, 0.0)
        high = high if high > low else 1.0
    magnitude = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(m for m in (1, 2, 2.5, 5, 10, 20) if m * magnitude * count >= high - low)
    step *= magnitude
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


class Axes:
    """The axes of a chart: from a step and a value to coordinates of the SVG."""

    def __init__(
        self, values: Iterable[float], last_step: float, *, percent: bool, wide: bool
    ) -> None:
        all_values = list(values)
        low, high = min(all_values), max(all_values)
        if 0 < low < 0.6 * high or (percent and low > 0 and high - low < 0.5):
            low = 0.0  # the axis starts at zero unless that flattens the curve
        self.ticks = ticks(low, high, 6 if wide else 4)
        self.labels = tick_labels(self.ticks, percent=percent)
        self.low, self.high = self.ticks[0], self.ticks[-1]
        self.last_step = last_step

    def at(self, step: float, value: float) -> str:
        return f"{self.x(step):.5g} {self.y(value):.5g}"

    def x(self, step: float) -> float:
        return BOX * step / self.last_step

    def y(self, value: float) -> float:
        return BOX * (self.high - value) / (self.high - self.low)
