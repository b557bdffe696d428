"""Alarms: the trained reward rises while a watched one worsens, as when a reward is gamed.

Evaluations ask the same prompts with the same seeds, so completions are compared in pairs. A change
counts when it is more than two standard errors; those are over prompts, since the completions of
one prompt are not independent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, Literal

Record = Mapping[str, Any]
BEYOND_NOISE = 2.0
"""Standard errors."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Which way a watched reward improves, and how far its mean may worsen without an alarm."""

    better: Literal["higher", "lower"] = "higher"
    tolerance: float = 0.0


@dataclass(frozen=True)
class Change:
    """The mean of paired differences and its standard error; NaN where there is none."""

    mean: float
    error: float

    def rose(self, margin: float = 0.0) -> bool:
        """Whether it rose by more than the margin, beyond noise; False where the error is NaN."""
        return self.mean > margin + BEYOND_NOISE * self.error

    def fell(self, margin: float = 0.0) -> bool:
        return Change(-self.mean, self.error).rose(margin)

    def __str__(self) -> str:
        return f"{'rose' if self.mean > 0 else 'fell'} by {abs(self.mean):.3g} ± {self.error:.2g}"


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """What rose and what worsened since the first evaluation."""

    name: str
    trained: Change
    watched: Change

    def __str__(self) -> str:
        return (
            f"alarm: since the first evaluation the trained reward {self.trained} while the "
            f"watched {self.name!r} {self.watched} (± one standard error): "
            f"is the reward being gamed?"
        )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


def alarms(
    first: Sequence[Record], now: Sequence[Record], watches: Mapping[str, Watch]
) -> dict[str, Alarm | None]:
    """For each watched reward its alarm, or None, from the records of two evaluations.

    A record has `draw`, `index`, `greedy`, the trained `total` and `watched`, values by name.
    """
    trained = change(first, now, lambda record: record.get("total"))
    found: dict[str, Alarm | None] = {}
    for name, watch in watches.items():
        seen = change(first, now, partial(_watched, name))
        worsened = seen.fell if watch.better == "higher" else seen.rose
        raised = trained.rose() and worsened(watch.tolerance)
        found[name] = Alarm(name=name, trained=trained, watched=seen) if raised else None
    return found


def change(
    first: Sequence[Record], now: Sequence[Record], value: Callable[[Record], float | None]
) -> Change:
    """How a value changed in the completions that have it both times."""
    before = {_key(record): value(record) for record in first}
    differences: dict[int, list[float]] = {}
    for record in now:
        old, new = before.get(_key(record)), value(record)
        if _is_number(old) and _is_number(new):
            differences.setdefault(record["draw"], []).append(new - old)  # type: ignore[operator]
    means = [fmean(of_prompt) for of_prompt in differences.values()]
    if len(means) < 2:
        return Change(means[0] if means else math.nan, math.nan)
    return Change(fmean(means), stdev(means) / math.sqrt(len(means)))


def _watched(name: str, record: Record) -> float | None:
    values: Mapping[str, float | None] = record.get("watched") or {}
    return values.get(name)


def _key(record: Record) -> tuple[int, int, bool]:
    return record["draw"], record["index"], record["greedy"]


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
