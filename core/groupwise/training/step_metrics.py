"""Step metrics: metrics of a step's rollouts and rewards, over all processes."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise import processes
from groupwise.advantages import group_std
from groupwise.errors import UserError
from groupwise.prompts.outcomes import Outcome
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
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
    are metrics.
    """
    total, groups = scores.total, rollouts.groups.cpu()
    lengths = rollouts.lengths.cpu().double()
    of_rollouts = {
        "reward": total,
        "reward_std": group_std(total, groups),
        **({} if right is None else {"accuracy": right}),
        "zero_variance": dead,
        "length": lengths,
        "truncated": rollouts.truncated,
        **{f"rewards/{name}": scores.column(name) for name in scores.names},
    }
    for name in sorted(logged & rollouts.facts.keys()):
        of_rollouts[name] = torch.tensor(rollouts.facts[name])
    longest = int(lengths.max()) if len(lengths) else 0
    metrics = {
        **processes.means(of_rollouts),
        "failed_rewards": processes.total(int(scores.failed.sum())),
        "unscored": processes.total(int(total.isnan().sum())),
        "sampled_decisions": processes.total(int(lengths.sum())),
        "length_max": float(processes.largest(longest)),
        **{f"reward_time/{name}": spent for name, spent in scores.seconds.items()},
    }
    undefined = {name: processes.total(scores.undefined.get(name, 0)) for name in scores.names}
    metrics |= {f"{UNDEFINED}{name}": count for name, count in undefined.items() if count}
    return {**metrics, **scores.metrics}  # named REWARD/..., so they cannot collide


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
    batches: Mapping[str, TrainingBatch], dead: Mapping[str, Tensor]
) -> dict[str, float]:
    """Metrics of each learner's rollouts, as `LABEL/metric`, and the decisions of all.

    dead: [B] bool for each that learns: rollouts of groups that teach it nothing.
    """
    metrics: dict[str, float] = {}
    for label, batch in batches.items():
        total, groups = batch.scores.total, batch.rollouts.groups.cpu()
        means = {
            "reward": total,
            "reward_std": group_std(total, groups),
            **({"zero_variance": dead[label]} if label in dead else {}),
            "length": batch.rollouts.lengths.cpu().double(),
            "truncated": batch.rollouts.truncated,
        }
        metrics |= {f"{label}/{name}": value for name, value in processes.means(means).items()}
    decisions = sum(int(batch.rollouts.lengths.sum()) for batch in batches.values())
    return {**metrics, "sampled_decisions": processes.total(decisions)}


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
