"""Teaching: what rewards that learn are taught by a step, and by whom."""

from collections.abc import Mapping
from typing import Any

import torch

from groupwise.errors import UserError
from groupwise.rewards import Reward, RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer


def teach(
    rewards: Scorer, watched: Scorer | None, rollouts: Rollouts, scores: Scores, state: RunState
) -> dict[str, float]:
    """Call `refresh(rollouts, scores)` of the rewards that learn; returns their metrics.

    A reward that states the name of a watched one as `labels` gets the scores of that, which the
    policy never sees; any other those of the step. One that states `every` is called once in so
    many steps, with 0 never. Tensors among the facts are in CPU memory by then.

    state: that in which the rollouts were drawn. Raises UserError for what a reward cannot learn.
    """
    metrics: dict[str, float] = {}
    for reward in rewards.rewards:
        target = reward.target
        every = getattr(target, "every", 1) if hasattr(target, "refresh") else 0
        if not every or (state.global_step + 1) % every:
            continue
        labels = getattr(target, "labels", None)
        if labels is None:
            learned = _learned(reward, rollouts, scores)
        else:
            assert watched is not None
            learned = _learned(reward, rollouts, _labelled(watched, labels, rollouts, state))
        metrics |= {f"{reward.name}/{name}": value for name, value in learned.items()}
    return metrics


def _labelled(watched: Scorer, name: str, rollouts: Rollouts, state: RunState) -> Scores:
    """The scores of one watched reward; a process may have no rollouts."""
    if len(rollouts):
        return watched.finish([watched.start(rollouts, state, only=[name])])
    nothing = torch.empty(0, 1, dtype=torch.float64)
    failed = torch.empty(0, dtype=torch.bool)
    return Scores(names=(name,), weights=(1.0,), values=nothing, failed=failed)


def _learned(reward: Reward, rollouts: Rollouts, scores: Scores) -> Mapping[str, Any]:
    try:
        return reward.target.refresh(rollouts, scores) or {}
    except ValueError as error:
        raise UserError(f"reward {reward.name!r} cannot learn: {error}") from error
