"""MT-GRPO: a turn has the credit of its own reward and, in part, of the outcome.

When to use it: the reward of a turn says by itself whether the turn was good (a call of a tool that
is valid and finds something), whatever follows. With too small a `weight`, turns are learned that
have high rewards and no use. Turns without a reward have the credit of the outcome alone.

Where implementations differ: the paper has two turns, a call of a tool with a reward and an answer
with the outcome. Here any turn may have a reward.
"""

from typing import Any

import torch
from torch import Tensor

from groupwise.advantages import group_relative
from groupwise.algorithms.credit.table import Table


def mt_grpo(
    table: Table, outcome: Tensor, episode: Tensor, *, weight: float, **comparison: Any
) -> Tensor:
    """[B, K]: A_k = (r_k - mean of the group's r_k) / (std + epsilon) + weight A; MT-GRPO.

    A where there is no r_k; arXiv:2505.11821.
    outcome: [B], NaN for an episode without one: then A is 0. episode: [B], A, the advantage of the
    whole episode. Rewards are compared with those of the same turn. comparison: as of
    `group_relative`.
    """
    rewards = table.rewards.masked_fill(outcome.isnan().unsqueeze(1), torch.nan)
    own = group_relative(rewards.flatten(), table.same_turn.flatten(), **comparison)
    mixed = own.view_as(rewards) + weight * episode.unsqueeze(1)
    return torch.where(rewards.isnan(), episode.unsqueeze(1), mixed)
