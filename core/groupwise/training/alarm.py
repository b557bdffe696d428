"""Alarms: the trained reward rises while a watched one worsens, a sign of reward hacking.

Every evaluation has the same prompts and seeds, so completions are compared in pairs. A change
counts if it exceeds two standard errors. These are over prompts, since the completions of one
prompt are not independent.

A watched reward is compared with its first evaluation, and with its best one so far, since it may
rise with the trained reward at first. The best of k evaluations is one that noise has raised, so a
fall since then must exceed z_k standard errors, with

    1 - Phi(z_k) = (1 - Phi(2)) / (k k (k + 1)),

by Bonferroni's inequality: k for the choice among k evaluations, and k (k + 1) for the repetition,
since the sum of 1 / (k (k + 1)) over all k is 1. So a watched reward that has not worsened causes
such an alarm in at most 2.3% of runs, however many evaluations they have. The comparison with the
first has a chance of 2.3% at each evaluation, if the trained reward has risen.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, Literal

import torch

from groupwise.evaluation import Alarm, Change

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Whether higher or lower is better, and how much the mean may worsen without an alarm."""

    better: Literal["higher", "lower"] = "higher"
    tolerance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Best:
    """The evaluation with the best mean of a watched reward, the first of them if they are equal.

    records: its completions, each with `value`; of: the number of evaluations it was chosen from.
    """

    step: int
    records: Sequence[Record]
    of: int

    @property
    def tests(self) -> int:
        """By how many tests the chance of a fall by noise is divided."""
        return self.of * self.of * (self.of + 1)

    @property
    def mean(self) -> float:
        return fmean(record["value"] for record in self.records)


class Alarms:
    """Compares each evaluation of a run with earlier ones.

    first: the records of the first evaluation; best: by watched reward; raised: by watched reward,
    the alarm of the last evaluation, or None.
    """

    def __init__(self, watches: Mapping[str, Watch]) -> None:
        self.watches = watches
        self.first: Sequence[Record] | None = None
        self.best: dict[str, Best] = {}
        self.raised: Mapping[str, Alarm | None] = {}

    def remember(self, samples: Sequence[Record]) -> None:
        """Set the first evaluation."""
        kept = (*_KEY, "total", "watched")
        self.first = [{name: sample.get(name) for name in kept} for sample in samples]

    def observe(self, samples: Sequence[Record], step: int) -> None:
        """Compare an evaluation after `step` steps with the earlier ones; set `raised`.

        A sample has `draw`, `index`, `greedy`, the trained `total` and `watched`, values by name.
        """
        if self.first is None:
            self.remember(samples)
        elif samples:
            trained = change(self.first, samples, _total)
            self.raised = {name: self._alarm(name, samples, trained) for name in self.watches}
        for name in self.watches:
            self._keep(name, samples, step)

    def _alarm(self, name: str, samples: Sequence[Record], trained: Change) -> Alarm | None:
        if not trained.rose():
            return None
        watch, best = self.watches[name], self.best.get(name)
        watched = change(self.first or (), samples, partial(_watched, name))
        if _worsened(watched, watch):
            return Alarm(name=name, trained=trained, watched=watched)
        if best is None or not best.step:
            return None
        now = [{**sample, "value": _watched(name, sample)} for sample in samples]
        watched = change(best.records, now, _value)
        if _worsened(watched, watch, tests=best.tests):
            return Alarm(name=name, trained=trained, watched=watched, since=best.step)
        return None

    def _keep(self, name: str, samples: Sequence[Record], step: int) -> None:
        """Keep the evaluation if it is the best of a watched reward."""
        values = [(sample, _watched(name, sample)) for sample in samples]
        records = [
            {"value": value, **{key: sample.get(key) for key in _KEY}}
            for sample, value in values
            if _is_number(value)
        ]
        if not records:
            return
        before, sign = self.best.get(name), 1 if self.watches[name].better == "higher" else -1
        new = Best(step=step, records=records, of=1 + (before.of if before else 0))
        if before is not None and sign * new.mean <= sign * before.mean:
            new = Best(step=before.step, records=before.records, of=new.of)
        self.best[name] = new

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The best evaluations; the first is in the run's folder."""
        return {name: _packed(best) for name, best in self.best.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = {name: _unpacked(best) for name, best in state.items() if name in self.watches}


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


def _worsened(change: Change, watch: Watch, *, tests: int = 1) -> bool:
    worsened = change.fell if watch.better == "higher" else change.rose
    return worsened(watch.tolerance, tests=tests)


def _packed(best: Best) -> dict[str, Any]:
    """As a checkpoint has it, with columns as tensors."""
    columns = {key: [record[key] for record in best.records] for key in ("value", *_KEY)}
    tensors = {key: torch.tensor(columns[key]) for key in ("draw", "index", "greedy")}
    values = torch.tensor(columns["value"], dtype=torch.float64)
    learners = columns["learner"] if any(columns["learner"]) else None
    return {"step": best.step, "of": best.of, **tensors, "value": values, "learner": learners}


def _unpacked(state: Mapping[str, Any]) -> Best:
    columns = {key: state[key].tolist() for key in ("value", "draw", "index", "greedy")}
    columns["learner"] = state["learner"] or [None] * len(columns["value"])
    rows = zip(*columns.values(), strict=True)
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Best(step=state["step"], of=state["of"], records=records)


def _total(record: Record) -> float | None:
    total: float | None = record.get("total")
    return total


def _value(record: Record) -> float | None:
    value: float | None = record.get("value")
    return value


def _watched(name: str, record: Record) -> float | None:
    values: Mapping[str, float | None] = record.get("watched") or {}
    return values.get(name)


_KEY = ("learner", "draw", "index", "greedy")
"""What names a completion of an evaluation."""


def _key(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(key) for key in _KEY)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
