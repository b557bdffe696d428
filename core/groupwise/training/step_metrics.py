"""Step metrics: metrics of a step's rollouts and rewards, over all processes."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.advantages import group_std
from groupwise.errors import UserError
from groupwise.prompts.outcomes import Outcome
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.training.tally import Tally
from groupwise.training.work import TrainingBatch

UNDEFINED = "nan_rewards/"
"""Prefix of a metric by reward: for how many completions it returned NaN."""
COUNTS = frozenset({"failed_rewards", "unscored", "sampled_decisions"})


def describe(
    rollouts: Rollouts,
    scores: Scores,
    *,
    dead: Tensor,
    right: Tensor | None,
    logged: Collection[str],
) -> dict[str, Any]:
    """Means, counts and seconds by name, and what rewards log themselves.

    dead: [B] bool, rollouts of groups without a training signal; right: [B], 1 for right
    completions, None if no reward tells right from wrong; logged: the policy's facts whose means
    over decisions are metrics.
    """
    tally = _of_rollouts(rollouts, scores, dead, logged)
    lengths = rollouts.lengths
    if right is not None:
        tally.means_of("accuracy", right)
    for name in scores.names:
        tally.means_of(f"rewards/{name}", scores.column(name))
        if count := scores.undefined.get(name, 0):
            tally.total(f"{UNDEFINED}{name}", count)
    for name, (total, count) in scores.metrics.items():  # named REWARD/..., so no name is the same
        tally.mean(name, total, count)
    tally.total("failed_rewards", int(scores.failed.sum()))
    tally.total("unscored", int(scores.total.isnan().sum()))
    tally.total("sampled_decisions", int(lengths.sum()))
    tally.largest("length_max", float(lengths.max()) if len(lengths) else 0.0)
    seconds = {f"reward_time/{name}": spent for name, spent in scores.seconds.items()}
    return {**tally.of_all_processes().result(), **seconds}


def _of_rollouts(
    rollouts: Rollouts, scores: Scores, dead: Tensor | None, logged: Collection[str]
) -> Tally:
    """Means over rollouts, and over their decisions for the facts in `logged`."""
    tally, lengths = Tally(), rollouts.lengths.cpu().double()
    tally.means_of("reward", scores.total)
    tally.means_of("reward_std", group_std(scores.total, rollouts.groups.cpu()))
    if dead is not None:
        tally.means_of("zero_variance", dead.double())
    tally.means_of("length", lengths)
    tally.means_of("truncated", rollouts.truncated.cpu().double())
    for name in sorted(logged & rollouts.facts.keys()):
        # A mean over the decisions of each rollout: weighted by their number, one over all.
        values = torch.tensor(rollouts.facts[name], dtype=torch.float64)
        tally.means_of(name, values, weights=lengths)
    return tally


def outcomes(rollouts: Rollouts, right: Tensor | None) -> dict[int, Outcome]:
    """The outcome of each draw, by its number, over all processes.

    right: [B] as for `describe`, NaN if not judged. Raises UserError for None.
    """
    if right is None:
        raise UserError(
            "prompts.weighting: the first reward gives values other than 0 and 1, so it does not "
            "tell right from wrong; set evaluation.accuracy to a reward that does, or set "
            "evaluation.threshold"
        )
    numbers, index = rollouts.groups.cpu().unique(return_inverse=True)
    sums = torch.zeros(len(numbers), 2, dtype=torch.float64)
    sums.index_add_(0, index, torch.stack([right.nan_to_num(), (~right.isnan()).double()], dim=1))
    rows = zip(numbers.tolist(), sums.tolist(), strict=True)
    parts = gather_object([{number: Outcome(*counts) for number, counts in rows}])
    return {number: outcome for part in parts for number, outcome in part.items()}


def of_learners(
    batches: Mapping[str, TrainingBatch],
    dead: Mapping[str, Tensor],
    logged: Mapping[str, Collection[str]],
) -> dict[str, float]:
    """Metrics of each learner's rollouts, as `LABEL/metric`, and the decisions of all.

    dead: [B] bool for each that learns: rollouts of groups that teach it nothing; logged: as for
    `describe`, of each policy.
    """
    metrics: dict[str, float] = {}
    decisions = Tally()
    for label, batch in batches.items():
        tally = _of_rollouts(batch.rollouts, batch.scores, dead.get(label), logged.get(label, ()))
        own = tally.of_all_processes().result()
        metrics |= {f"{label}/{name}": value for name, value in own.items()}
        decisions.total("sampled_decisions", int(batch.rollouts.lengths.sum()))
    return {**metrics, **decisions.of_all_processes().result()}


def with_round(metrics: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a step with the counts and seconds of a further round of sampling added.

    Means are of the first round only, since later rounds are no fair sample of the prompts.
    """
    added = {n for n in further if n in COUNTS or n.startswith(("reward_time/", UNDEFINED))}
    return {**metrics, **{name: metrics.get(name, 0) + further[name] for name in sorted(added)}}


def joined(metrics: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The union; UserError if the algorithm logs a name that the run has, too."""
    for name in sorted(metrics.keys() & others.keys()):
        raise UserError(
            f"the metric {name!r} is logged twice, by the run and by the algorithm; rename the "
            f"algorithm's"
        )
    return {**metrics, **others}
