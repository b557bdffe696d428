"""Step metrics: metrics of a step's rollouts and rewards, over all processes."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.advantages import group_std
from groupwise.kit.errors import UserError
from groupwise.kit.metric_names import Family
from groupwise.metrics.tally import Tally
from groupwise.prompts.outcomes import Outcome
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts

FAILED = "failed"
"""The metric of failed completions; `failed/REWARD` counts those on which a reward failed."""
SAMPLED = frozenset({"sampled", "sampled_decisions"})
"""Counts that are not metrics themselves: of completions, and of decisions."""
COUNTS = frozenset({FAILED, "unscored"}) | SAMPLED
VALUES = "values of "
"""With a reward's name, the count of the values that it gave; no metric itself."""


def describe(
    rollouts: Rollouts,
    scores: Scores,
    *,
    no_signal: Tensor | None,
    right: Tensor | None,
    logged: Collection[str],
    lost: int = 0,
    multi_turn: bool = False,
    columns: Collection[str] = (),
    turns: Tally | None = None,
    decisions: int | None = None,
    sources: Sequence[str] = (),
) -> dict[str, Any]:
    """Means, counts and seconds by name, and what rewards log themselves.

    Failed rollouts are in no mean: they are only counted.

    no_signal: [B] bool, rollouts of groups without a training signal, None for a further round of
    sampling, of which only counts are metrics; right: [B], 1 for right completions, None if no
    reward tells right from wrong; logged: the policy's facts whose means over decisions are
    metrics; lost: episodes that failed before any rollout, which are counted, too; multi_turn:
    whether shares of why episodes ended are metrics; columns: those of the environment whose means
    are metrics; turns: what is counted of the episodes' calls;
    decisions: how many were sampled, if not all are of these rollouts; sources: [B], the label of
    each row's source in a mixture, whose means are metrics, too.
    """
    failed = scores.failed
    tally = _of_rollouts(rollouts, scores, no_signal, logged)
    if right is not None:
        tally.means_of("accuracy", _known(right, failed))
    _by_source(tally, rollouts, scores, right, sources)
    for name in scores.names:
        tally.means_of(f"{Family.REWARDS}/{name}", _known(scores.column(name), failed))
        tally.total(f"{VALUES}{name}", int((~scores.column(name).isnan()).sum()))
        if count := scores.failure_counts.get(name, 0):
            tally.total(f"{Family.FAILED}/{name}", count)
    for name, (total, count) in scores.metrics.items():  # named REWARD/..., so no name is the same
        tally.mean(name, total, count)
    for name in columns:
        values = [column_value(name, value) for value in rollouts.facts[name]]
        numbers = torch.tensor(values, dtype=torch.float64)
        tally.means_of(f"{Family.ENVIRONMENT}/{name}", _known(numbers, failed))
    if turns is not None:
        tally.add(turns)
    tally.total("unscored", int((scores.total.isnan() & ~failed).sum()))
    _count(tally, rollouts, lost, decisions)
    longest = rollouts.lengths.cpu()[~failed]
    tally.largest("length_max", float(longest.max()) if len(longest) else 0.0)
    seconds = {f"{Family.REWARD_TIME}/{name}": spent for name, spent in scores.seconds.items()}
    ended = _ended(rollouts, failed) if multi_turn else {}
    return {**tally.of_all_processes().result(), **ended, **seconds}


def _of_rollouts(
    rollouts: Rollouts, scores: Scores, no_signal: Tensor | None, logged: Collection[str]
) -> Tally:
    """Means over rollouts, and over their decisions for the facts in `logged`."""
    tally, lengths, failed = Tally(), rollouts.lengths.cpu().double(), scores.failed
    tally.total(FAILED, int(failed.sum()))
    tally.means_of("reward", scores.total)
    tally.means_of("reward_std", _known(group_std(scores.total, rollouts.groups.cpu()), failed))
    if no_signal is not None:
        tally.means_of("zero_variance", _known(no_signal, failed))
    tally.means_of("length", _known(lengths, failed))
    tally.means_of("truncated", _known(rollouts.truncated, failed))
    for name in sorted(logged & rollouts.facts.keys()):
        # A mean over the decisions of each rollout: weighted by their number, one over all.
        values = torch.tensor(rollouts.facts[name], dtype=torch.float64)
        tally.means_of(name, _known(values, failed), weights=lengths)
    return tally


def _by_source(
    tally: Tally, rollouts: Rollouts, scores: Scores, right: Tensor | None, sources: Sequence[str]
) -> None:
    """Means over the rollouts of each source in a mixture; an accuracy where one was judged."""
    columns = {"reward": scores.total, "length": rollouts.lengths.cpu().double()}
    if right is not None:
        columns["accuracy"] = right
    for label in sorted({*sources} - {""}):
        others = torch.tensor([source != label for source in sources])
        for name, column in columns.items():
            known = _known(column, scores.failed | others)
            if not bool(known.isnan().all()):
                tally.means_of(f"{name}/{label}", known)


def _ended(rollouts: Rollouts, failed: Tensor) -> dict[str, float]:
    """The share of each reason in which rollouts ended, over all processes. A collective."""
    pairs = zip(rollouts.ended, failed.tolist(), strict=True)
    return shares_of_ends(gather_object([word for word, has_failed in pairs if not has_failed]))


def column_value(name: str, value: Any) -> float:
    """A value of a column that an environment logs; NaN for None. Raises UserError if it is no
    number."""
    if value is None:
        return math.nan
    if isinstance(value, Real | np.bool_):
        return float(value)
    raise UserError(
        f"environment: `logged` names the column {name!r}, so `play` must return a number or None "
        f"for it, received {value!r:.100} ({type(value).__name__})"
    )


def shares_of_ends(ended: Sequence[str]) -> dict[str, float]:
    """By metric, the share of each reason other than "stop"; of "length" also if it is 0."""
    counts = Counter({"length": 0, **Counter(ended)})
    return {
        f"{Family.ENDED}/{word}": counts[word] / len(ended) if ended else math.nan
        for word in sorted(counts)
        if word != "stop"
    }


def _count(tally: Tally, rollouts: Rollouts, lost: int = 0, decisions: int | None = None) -> None:
    """Count what was sampled; lost: episodes that failed before any rollout, each as one;
    decisions: as in `describe`."""
    tally.total("sampled", len(rollouts) + lost)
    own = int(rollouts.lengths.sum()) if decisions is None else decisions
    tally.total("sampled_decisions", own)
    tally.total(FAILED, lost)


def _known(values: Tensor, failed: Tensor) -> Tensor:
    """Values [B] with NaN, which a mean leaves out, at failed rollouts."""
    return values.cpu().double().masked_fill(failed, math.nan)


def outcomes(rollouts: Rollouts, right: Tensor) -> dict[int, Outcome]:
    """The outcome of each draw, by its number, over all processes.

    right: [B], 1 for right completions, 0 for wrong ones, NaN if not judged.
    """
    numbers, index = rollouts.groups.cpu().unique(return_inverse=True)
    sums = torch.zeros(len(numbers), 2, dtype=torch.float64)
    sums.index_add_(0, index, torch.stack([right.nan_to_num(), (~right.isnan()).double()], dim=1))
    rows = zip(numbers.tolist(), sums.tolist(), strict=True)
    parts = gather_object([{number: Outcome(*counts) for number, counts in rows}])
    return {number: outcome for part in parts for number, outcome in part.items()}


def of_learners(
    views: Mapping[str, tuple[Rollouts, Scores]],
    no_signal: Mapping[str, Tensor],
    logged: Mapping[str, Collection[str]],
    lost: int = 0,
) -> dict[str, float]:
    """Metrics of each learner's rollouts, as `LABEL/metric`, and counts over all learners.

    views: by label, the rollouts and their scores.

    no_signal: [B] bool for each that learns: rollouts of groups that teach it nothing; logged: as
    for `describe`, of each policy; lost: as there.
    """
    metrics: dict[str, float] = {}
    counts = Tally()
    for label, (rollouts, scores) in views.items():
        tally = _of_rollouts(rollouts, scores, no_signal.get(label), logged.get(label, ()))
        of_player = tally.of_all_processes().result()
        metrics |= {f"{label}/{name}": value for name, value in of_player.items()}
        _count(counts, rollouts)
        counts.total(FAILED, int(scores.failed.sum()))
    counts.total("sampled", lost)
    counts.total(FAILED, lost)
    return {**metrics, **counts.of_all_processes().result()}


def with_round(metrics: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a step with the counts and seconds of a further round of sampling added.

    Means are of the first round only, since later rounds are no fair sample of the prompts.
    """
    families = (f"{Family.REWARD_TIME}/", f"{Family.FAILED}/", VALUES)
    added = {n for n in further if n in COUNTS or n.startswith(families)}
    return {**metrics, **{name: metrics.get(name, 0) + further[name] for name in sorted(added)}}


def is_count(name: str) -> bool:
    """Whether it is counted for the run itself, and not a metric."""
    return name in SAMPLED or name.startswith(VALUES)


def joined(metrics: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The union; UserError if the algorithm logs a name that the run has, too."""
    for name in sorted(metrics.keys() & others.keys()):
        raise UserError(
            f"the metric {name!r} is logged twice, by the run and by the algorithm; rename the "
            f"algorithm's"
        )
    return {**metrics, **others}
