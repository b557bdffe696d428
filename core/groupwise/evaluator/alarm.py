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

Where any change is for the worse (`better: same`) there is no best evaluation, and the comparison
with the first is of two tests, one in each direction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Protocol

import torch

from groupwise.evaluation import Alarm, Better, Change, Sample

Key = tuple[str | None, int, int, bool]
"""What names a completion of an evaluation: learner, draw, index in the group, greedy or not."""
Values = Mapping[Key, float]


class Limits(Protocol):
    """What counts as worse: of a section of `watch`, or of a default watch."""

    @property
    def better(self) -> Better: ...
    @property
    def tolerance(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Best:
    """The evaluation with the best mean of a watched reward, the first of them if they are equal.

    of: the number of evaluations it was chosen from.
    """

    step: int
    values: Values
    of: int

    @property
    def tests(self) -> int:
        """By how many tests the chance of a fall by noise is divided."""
        return self.of * self.of * (self.of + 1)


class Alarms:
    """Compares each evaluation of a run with earlier ones.

    watches: by watched reward, what counts as worse; some may apply to no completion.
    first: values of the first evaluation, by watched reward, and under None the trained totals;
    best: by watched reward; raised: by watched reward, the alarm of the last evaluation, or None.
    """

    def __init__(self, watches: Mapping[str, Limits]) -> None:
        self.watches = watches
        self.first: Mapping[str | None, Values] | None = None
        self.best: dict[str, Best] = {}
        self.raised: Mapping[str, Alarm | None] = {}

    def remember(self, samples: Sequence[Sample]) -> None:
        """Set the first evaluation."""
        self.first = self._values(samples)

    def observe(self, samples: Sequence[Sample], step: int) -> None:
        """Compare an evaluation after `step` steps with the earlier ones; set `raised`.

        A sample has `draw`, `index`, `greedy`, the trained `total` and `watched`, values by name.
        """
        now = self._values(samples)
        if self.first is None:
            self.first = now
        elif samples:
            trained = change(self.first[None], now[None])
            measured = [name for name in self.watches if now[name] or self.first[name]]
            self.raised = {name: self._alarm(name, now[name], trained) for name in measured}
        for name in self.watches:
            self._keep(name, now[name], step)

    def _values(self, samples: Sequence[Sample]) -> dict[str | None, Values]:
        return {name: values_of(samples, name) for name in (None, *self.watches)}

    def _alarm(self, name: str, now: Values, trained: Change) -> Alarm | None:
        if not trained.rose() or self.first is None:
            return None
        best = self.best.get(name)
        watched = change(self.first[name], now)
        if self._worsened(name, watched):
            return Alarm(name=name, trained=trained, watched=watched)
        if best is None or not best.step or self.watches[name].better == "same":
            return None
        watched = change(best.values, now)
        if self._worsened(name, watched, tests=best.tests):
            return Alarm(name=name, trained=trained, watched=watched, since=best.step)
        return None

    def _worsened(self, name: str, change: Change, *, tests: int = 1) -> bool:
        watch = self.watches[name]
        if watch.better == "same":  # in one of two directions
            return any(moved(watch.tolerance, tests=2) for moved in (change.fell, change.rose))
        worsened = change.fell if watch.better == "higher" else change.rose
        return worsened(watch.tolerance, tests=tests)

    def _keep(self, name: str, now: Values, step: int) -> None:
        """Keep the evaluation if it is the best of a watched reward."""
        if not now:
            return
        before, sign = self.best.get(name), 1 if self.watches[name].better == "higher" else -1
        of = 1 + (before.of if before else 0)
        if before is None or sign * fmean(now.values()) > sign * fmean(before.values.values()):
            self.best[name] = Best(step=step, values=now, of=of)
        else:
            self.best[name] = Best(step=before.step, values=before.values, of=of)

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The best evaluations; the first is in the run's folder."""
        return {name: _packed(best) for name, best in self.best.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = {name: _unpacked(best) for name, best in state.items() if name in self.watches}


def values_of(samples: Sequence[Sample], watched: str | None = None) -> Values:
    """The trained totals, or the values of a watched reward, of completions that have a number; of
    an episode with several judged replies their mean."""
    values: dict[Key, list[float]] = {}
    for sample in samples:
        by_name = {None: sample.get("total"), **(sample.get("watched") or {})}
        value = by_name.get(watched)
        if value is not None and math.isfinite(value):
            key = sample.get("learner"), sample["draw"], sample["index"], sample["greedy"]
            values.setdefault(key, []).append(value)
    return {key: fmean(of_key) for key, of_key in values.items()}


def change(first: Values, now: Values) -> Change:
    """The mean change of a value over the completions that have it in both evaluations."""
    differences: dict[int, list[float]] = {}
    for key, value in now.items():
        if key in first:
            differences.setdefault(key[1], []).append(value - first[key])
    means = [fmean(of_prompt) for of_prompt in differences.values()]
    if len(means) < 2:
        return Change(means[0] if means else math.nan, math.nan)
    return Change(fmean(means), stdev(means) / math.sqrt(len(means)))


def _packed(best: Best) -> dict[str, Any]:
    """As a checkpoint has it, with columns as tensors."""
    learners, draws, indices, greedy = map(list, zip(*best.values, strict=True))
    return {
        "step": best.step,
        "of": best.of,
        "draw": torch.tensor(draws),
        "index": torch.tensor(indices),
        "greedy": torch.tensor(greedy),
        "value": torch.tensor([*best.values.values()], dtype=torch.float64),
        "learner": learners if any(learners) else None,
    }


def _unpacked(state: Mapping[str, Any]) -> Best:
    draws, values = state["draw"].tolist(), state["value"].tolist()
    learners = state["learner"] or [None] * len(values)
    keys = zip(learners, draws, state["index"].tolist(), state["greedy"].tolist(), strict=True)
    return Best(step=state["step"], of=state["of"], values=dict(zip(keys, values, strict=True)))
