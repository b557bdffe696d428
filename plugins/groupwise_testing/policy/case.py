"""Case: a policy, rows, its rollouts for them and its outputs for these."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.policy import Policy
from groupwise.rollouts import Rollouts
from groupwise_testing import compare
from groupwise_testing.draws import Draws, Rows

EVERY = slice(None)


class Case(Draws):
    """A policy and rows; load: loads a policy from what `save_pretrained` wrote."""

    def __init__(
        self, policy: Policy, rows: Rows, size: int, load: Callable[[Path], Policy] | None
    ) -> None:
        super().__init__(policy, rows, size)
        self.policy, self.load = policy, load

    @cached_property
    def rollouts(self) -> Rollouts:
        """One sample of all rows, which most laws use."""
        return self.sample()

    @torch.no_grad()
    def outputs(
        self, rollouts: Rollouts | None = None, decisions: slice = EVERY
    ) -> dict[str, Tensor]:
        """The policy's outputs by name, for all its rollouts if unset; copied, since an output may
        be a view of a weight."""
        current = self.policy(self.rollouts if rollouts is None else rollouts, decisions)
        return {name: value.clone() for name, value in current.outputs.items()}

    @cached_property
    def whole(self) -> dict[str, Tensor]:
        """The policy's outputs for all its rollouts at once."""
        return self.outputs()

    def difference(
        self,
        outputs: Mapping[str, Tensor],
        mask: Tensor | None = None,
        *,
        rows: Any = EVERY,
        columns: slice = EVERY,
    ) -> str | None:
        """How outputs differ from those in `whole` for these rows and decisions; None if not.

        mask: which of them are decisions; that of all rollouts if unset.
        """
        mask = self.rollouts.mask if mask is None else mask
        for name, value in outputs.items():
            expected = self.whole[name].cpu()[rows][:, columns]
            part = value.cpu()[:, : expected.shape[1]]
            gap = compare.gap(*(compare.at_decisions(v, mask) for v in (part, expected)))
            if gap > self.limit:
                return f"{name} differ by {gap:.2g}, at most {self.limit:g} is allowed"
        return None
