"""Table: the turns of an update's rollouts as tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from groupwise.rollouts import Rollouts, Turn


@dataclass(frozen=True)
class Table:
    """The turns of B rollouts, at most K each; padded to K.

    A rollout's own turns come first, then later ones of its episode that are in other rollouts:
    these have no decisions here, but rewards, which the returns of its own contain.
    """

    rollouts: Rollouts

    @cached_property
    def decisions(self) -> Tensor:
        """[B, K] int64: the decisions of each turn; 0 where there is none."""
        return self._filled(lambda turn: turn.decisions, 0, torch.int64)

    @cached_property
    def exists(self) -> Tensor:
        """[B, K] bool."""
        return self._filled(lambda _: True, False, torch.bool)

    @cached_property
    def rewards(self) -> Tensor:
        """[B, K] float64: the reward of each turn; NaN where it has none."""
        return self._filled(lambda turn: turn.reward, torch.nan, torch.float64)

    @cached_property
    def states(self) -> Tensor:
        """[B, K] int64: the state before each turn; -1 where it has no name."""
        return self._filled(lambda turn: turn.state, -1, torch.int64)

    @cached_property
    def same_turn(self) -> Tensor:
        """[B, K] int64, equal for turns of a group that have the same number."""
        _, groups = self.rollouts.groups.unique(return_inverse=True)
        most = self.exists.shape[1]
        return groups.unsqueeze(1) * most + torch.arange(most)

    def returns(self, outcome: Tensor, discount: float) -> Tensor:
        """[B, K]: R_k = r_k + discount R_(k+1), where r_k is the reward of turn k, 0 if it has
        none, and of the last turn r_k plus the outcome.

        After its last turn an episode has the outcome. outcome: [B]; where it is NaN, all is.
        """
        rewards = self.rewards.nan_to_num()
        following, returns = outcome, list[Tensor]()
        for turn in reversed(range(rewards.shape[1])):
            exists = self.exists[:, turn]
            is_last = self.exists[:, turn:].sum(1) == 1
            later = torch.where(is_last, following, discount * following)
            following = torch.where(exists, rewards[:, turn] + later, following)
            returns.append(following)
        return torch.stack(returns[::-1], dim=1)

    def placed(self, values: Tensor) -> Tensor:
        """[B, T]: a value of each turn [B, K] at each of its decisions, 0 elsewhere."""
        mask = self.rollouts.mask
        ends, number = self.decisions.cumsum(1), mask.cumsum(1) - mask.long()
        turn = torch.searchsorted(ends, number, right=True)
        return values.gather(1, turn.clamp(max=values.shape[1] - 1)).masked_fill(~mask, 0.0)

    def _filled(self, field: Callable[[Turn], Any], missing: Any, dtype: torch.dtype) -> Tensor:
        turns: Sequence[Sequence[Turn]] = self.rollouts.each_turn
        most = max(1, *map(len, turns))
        rows = [
            [missing if (value := field(turn)) is None else value for turn in own]
            + [missing] * (most - len(own))
            for own in turns
        ]
        return torch.tensor(rows, dtype=dtype)
