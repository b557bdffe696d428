"""GiGPO: turns that began in the same state are compared with each other.

When to use it: the episodes of a prompt pass through the same states again and again (rooms, pages,
boards), so that turns there are several answers to one question. The environment names the states.
A turn whose state no other turn of the prompt's episodes shares has the credit of its episode.

Where implementations differ: the authors' code divides both comparisons by stds, or neither; here
`scale` decides for both. It can also take states that are only similar for the same: name them
alike for that.
"""

from typing import Any

import torch
from torch import Tensor

from groupwise.advantages import group_relative
from groupwise.algorithms.credit.table import Table


def gigpo(
    table: Table,
    outcome: Tensor,
    episode: Tensor,
    *,
    discount: float,
    weight: float,
    **comparison: Any,
) -> Tensor:
    """[B, K]: A + weight (R_k - mean) / (std + epsilon); GiGPO, arXiv:2505.10978.

    R_k = r_k + discount R_(k+1); mean and std are over all turns of the prompt's episodes that
    began in the state of turn k. A turn in another rollout of the episode is compared there.

    outcome: [B], added to the reward of the last turn; NaN for none: then A is 0. episode: [B], A,
    the advantage of the whole episode. comparison: as of `group_relative`.
    """
    elsewhere = (table.states < 0) | (table.decisions == 0)
    returns = table.returns(outcome, discount).masked_fill(elsewhere, torch.nan)
    own = group_relative(returns.flatten(), table.states.flatten(), **comparison)
    return episode.unsqueeze(1) + weight * own.view_as(returns)
