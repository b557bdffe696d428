"""Divisor: how the losses of decisions are averaged."""

from typing import Any

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithms.parts.part import Options, Part
from groupwise.kit.errors import UserError
from groupwise.policy import Policy
from groupwise.rollouts import Rollouts
from groupwise.weights import KeptWeights


class Divisor(Part):
    """Loss weights that divide by lengths or counts of the whole update: `objective.weights`.

    length: the divisor of `normalize: constant`.
    """

    slot = "divisor"

    class Config(Options):
        normalize: objective.Normalize = Field(
            "sequence",
            description="how losses are averaged: over each completion, then over completions "
            "(sequence); over all decisions (token); or divided by a constant length (constant)",
        )
        length: int | None = Field(
            None,
            ge=1,
            description="divisor of normalize: constant; the longest completion allowed if unset",
        )
        mask_truncated: bool = Field(False, description="learn nothing from truncated completions")

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.length = self.config.length

    def prepare(self, policy: Policy, weights: KeptWeights) -> None:
        """Set `length` to the longest completion allowed, unless it is configured."""
        self.length = self.config.length or policy.max_decisions
        if self.config.normalize == "constant" and self.length is None:
            raise UserError(
                "algorithm.length: normalize: constant divides by the longest completion, and this "
                "policy has no limit; set algorithm.length"
            )

    def teaches(self, rollouts: Rollouts) -> Tensor:
        """[B] bool: all rollouts, or with `mask_truncated` those that were not cut off."""
        teaches = super().teaches(rollouts)
        return teaches & ~rollouts.truncated if self.config.mask_truncated else teaches

    def loss_weights(self, rollouts: Rollouts) -> Tensor:
        """[B, T] float32: the loss weight of each decision."""
        return objective.weights(
            rollouts.mask & self.whole.teaches(rollouts).unsqueeze(1),
            normalize=self.config.normalize,
            length=self.length,
            episodes=rollouts.episodes,
        )
