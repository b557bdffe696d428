"""Alarms: the trained reward rises while a watched one worsens, a sign of reward hacking.

Every evaluation has the same prompts and seeds, so completions are compared in pairs. A change
counts if it exceeds two standard errors. These are over prompts, since the completions of one
prompt are not independent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, Literal

from groupwise.evaluation import Alarm, Change

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Whether higher or lower is better, and how much the mean may worsen without an alarm."""

    better: Literal["higher", "lower"] = "higher"
    tolerance: float = 0.0


def alarms(
    first: Sequence[Record], now: Sequence[Record], watches: Mapping[str, Watch]
) -> dict[str, Alarm | None]:
    """By watched reward its alarm, or None, from the records of two evaluations.

    A record has `draw`, `index`, `greedy`, the trained `total` and `watched`, values by name.
    """
    trained = change(first, now, lambda record: record.get("total"))
    by_name: dict[str, Alarm | None] = {}
    for name, watch in watches.items():
        watched = change(first, now, partial(_watched, name))
        worsened = watched.fell if watch.better == "higher" else watched.rose
        raised = trained.rose() and worsened(watch.tolerance)
        by_name[name] = Alarm(name=name, trained=trained, watched=watched) if raised else None
    return by_name


def change(
    first: Sequence[Record], now: Sequence[Record], value: Callable[[Record], float | None]
) -> Change:
    """The mean change of a value over the completions that have it in both evaluations."""
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


def _key(record: Record) -> tuple[str | None, int, int, bool]:
    return record.get("learner"), record["draw"], record["index"], record["greedy"]


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
