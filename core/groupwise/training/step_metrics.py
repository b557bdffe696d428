"""Step metrics: what a step's rollouts and their rewards looked like, over all processes."""

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
from groupwise.training.work import Lesson

UNDEFINED = "nan_rewards/"
"""Before the name of a reward: how many completions it gave NaN."""
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

    dead: [B] bool, those of groups that nothing is learned from; right: [B], 1 for completions that
    are right, None where no reward tells; logged: the policy's facts to take the mean of.
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
    told = {
        **processes.means(of_rollouts),
        "failed_rewards": processes.total(int(scores.failed.sum())),
        "unscored": processes.total(int(total.isnan().sum())),
        "sampled_decisions": processes.total(int(lengths.sum())),
        "length_max": float(processes.largest(longest)),
        **{f"reward_time/{name}": spent for name, spent in scores.seconds.items()},
    }
    undefined = {name: processes.total(scores.undefined.get(name, 0)) for name in scores.names}
    told |= {f"{UNDEFINED}{name}": count for name, count in undefined.items() if count}
    return {**told, **scores.metrics}  # which have their reward's name before their own


def outcomes(rollouts: Rollouts, right: Tensor | None) -> dict[int, Outcome]:
    """What came of each draw, by its number, over all processes.

    right: [B] as for `describe`, NaN where it was not judged. Raises UserError for None.
    """
    if right is None:
        raise UserError(
            "prompts.weighting: the first reward gives other values than 0 and 1, so it does not "
            "tell right from wrong; name one that does by evaluation.accuracy, or set "
            "evaluation.threshold"
        )
    numbers, index = rollouts.groups.cpu().unique(return_inverse=True)
    sums = torch.zeros(len(numbers), 2, dtype=torch.float64)
    sums.index_add_(0, index, torch.stack([right.nan_to_num(), (~right.isnan()).double()], dim=1))
    rows = zip(numbers.tolist(), sums.tolist(), strict=True)
    parts = gather_object([{number: Outcome(*counts) for number, counts in rows}])
    return {number: outcome for part in parts for number, outcome in part.items()}


def of_learners(lessons: Mapping[str, Lesson], dead: Mapping[str, Tensor]) -> dict[str, float]:
    """What each of several learners drew, by `LABEL/metric`, and how many decisions it was.

    dead: [B] bool for each that learns, the rollouts of groups that it learns nothing from.
    """
    metrics: dict[str, float] = {}
    for label, lesson in lessons.items():
        total, groups = lesson.scores.total, lesson.rollouts.groups.cpu()
        means = {
            "reward": total,
            "reward_std": group_std(total, groups),
            **({"zero_variance": dead[label]} if label in dead else {}),
            "length": lesson.rollouts.lengths.cpu().double(),
            "truncated": lesson.rollouts.truncated,
        }
        metrics |= {f"{label}/{name}": value for name, value in processes.means(means).items()}
    decisions = sum(int(lesson.rollouts.lengths.sum()) for lesson in lessons.values())
    return {**metrics, "sampled_decisions": processes.total(decisions)}


def with_round(metrics: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics with a further round of sampling in those that are counts and seconds.

    Means stay those of the first round: what is drawn anew is no fair sample of the prompts.
    """
    added = {n for n in further if n in COUNTS or n.startswith(("reward_time/", UNDEFINED))}
    return {**metrics, **{name: metrics.get(name, 0) + further[name] for name in sorted(added)}}


def joined(metrics: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Both; UserError for a name that both have, which the algorithm chose."""
    for name in sorted(metrics.keys() & others.keys()):
        raise UserError(
            f"the metric {name!r} is logged twice, by the run and by the algorithm; rename the "
            f"algorithm's"
        )
    return {**metrics, **others}
