"""Velocities: what algorithms without a path share: distances of predicted velocities."""

from typing import Any

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts import Beta, Composed, Divergence, Divisor, GroupRelative
from groupwise.rollouts import LogProbs


class VelocityKL(Divergence):
    """beta |v - v_reference|^2, averaged over the latent's dimensions.

    In place of a KL, to which it is proportional: given a noised latent, the Gaussians of a step
    that v and v_reference lead to differ by their means alone.
    """

    class Config(Divergence.Config):
        beta: Beta = Field(
            0.0,
            description="weight in the loss of the squared distance between the velocity and that "
            "of the weights before training: a number, a schedule, or a target for the distance",
        )

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        if self.config.beta:
            self.reference = self.needs = frozenset({"velocity"})

    @property
    def weight(self) -> float:  # type: ignore[override]  # of other parts it is constant
        return self.beta

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: |v - v_reference|^2, averaged over the latent's dimensions."""
        return distance(current.extra["velocity"], batch["reference_velocity"])


class Matching(Composed, advantage=GroupRelative, divisor=Divisor, divergence=VelocityKL):
    """The base: group-relative advantages, clipped; a mean over decisions; a KL of velocities."""

    class Config(GroupRelative.Config, Divisor.Config, VelocityKL.Config):
        normalize: objective.Normalize = "token"
        advantage_clip: float = Field(
            5.0, gt=0, description="advantages are clipped to [-this, this]"
        )

    config: Config


def distance(one: Tensor, other: Tensor) -> Tensor:
    """[b, t]: |one - other|^2 of [b, t, ...], averaged over the latent's dimensions."""
    return (one - other).square().flatten(2).mean(dim=2)


def expanded(values: Tensor, like: Tensor) -> Tensor:
    """[b, t, 1, ...]: values [b, t], to be broadcast to a latent [b, t, ...]."""
    return values.view(*values.shape, *[1] * (like.ndim - 2))
