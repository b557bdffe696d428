"""AWM: advantage-weighted matching, pretraining's loss with the advantage as its weight.

When to use it: with `policy: forward_process`, where a loss close to pretraining's is wanted. Bad
images are pushed away without a bound, as in `elbo_grpo`, but by a root of the error (`power`), so
that the push gets weaker with the distance; and two squared distances of velocities grow faster:
to the weights before training (`beta`), and to an average of recent weights (`recent_beta`). The
latter acts with several updates per step, or with a larger `decay`: the average is otherwise almost
what the weights were when the step began.

Where implementations differ: the authors' released runs have the defaults here, with six noised
copies of an image, drawn without guidance in 14 steps, LoRA at 3e-4, and `beta: 1e-4` for
PickScore. Their clip range of 1 leaves ratios up to 2.
"""

from collections.abc import Mapping
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from groupwise.advantages import Scale
from groupwise.algorithm import Algorithm, Batch
from groupwise.algorithms.parts import Beta, Clipped, Options
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithms.following import Following
from groupwise_flow.algorithms.velocities import Matching, distance

RECENT = "recent"
"""The name of the average of recent weights."""
LEAST = 1e-10
"""Added to a squared error, whose power has an infinite derivative at 0."""


class AWM(Following, Matching, surrogate=Clipped):
    """AWM, arXiv:2509.25050: flow matching on own images, weighted by their advantages.

        log_prob = -(sigma / power) |v - (noise - x0)|^(2 power)
        loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)

    plus beta |v - v_reference|^2 + recent_beta |v - v_recent|^2. rho is exp(log_prob - log_prob
    before the step's first update), A the advantage over `advantage_clip`, so from -1 to 1, and
    v_recent the velocity of a moving average of the weights. All squares are means over a latent's
    dimensions.
    """

    follower = RECENT

    class Config(Following.Config, Clipped.Config, Matching.Config):
        scale: Scale = Field(
            "batch",
            description="divide advantages by the std of the group, of the batch, or by none",
        )
        beta: Beta = Field(
            0.003,
            description="weight in the loss of the squared distance between the velocity and that "
            "of the weights before training: a number, a schedule, or a target for the distance",
        )
        clip_low: float = Field(1.0, gt=0, description="clip range below 1")
        power: float = Field(
            0.25,
            gt=0,
            le=1,
            description="power of the squared error in the log-prob; below 1, large errors count "
            "less",
        )
        recent_beta: float = Field(
            1.0,
            ge=0,
            description="weight in the loss of the squared distance between the velocity and that "
            "of a moving average of the weights",
        )
        decay: float = Field(0.3, ge=0, lt=1, description="of the average, after each step")
        decay_rise: float | None = Field(
            0.001,
            gt=0,
            description="the decay grows from 0 by this in every step, up to `decay`; it does not "
            "change if null",
        )

        @model_validator(mode="after")
        def _average_is_read(self) -> Self:
            stated = sorted(self.model_fields_set & {"decay", "decay_rise", "decay_delay"})
            if self.recent_beta == 0 and stated:
                raise ValueError(f"{stated[0]} has no effect with recent_beta: 0; remove it")
            return self

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs = frozenset({"velocity", "target_velocity", "sigma"})
        self.old = frozenset({"velocity"})
        if self.config.recent_beta:
            self.copies = {RECENT: frozenset({"velocity"})}

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """[B] bool: all that count, while a distance has a gradient."""
        return Algorithm.active(self, targets) if self.copies else super().active(targets)

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        relative = batch["advantages"] / self.config.advantage_clip
        surrogate = super().surrogate(current, {**batch, "advantages": relative})
        if not self.copies:
            return surrogate
        recent = distance(current.extra["velocity"], batch[f"{RECENT}_velocity"])
        return surrogate + self.config.recent_beta * recent

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        new = self._log_prob(current.extra["velocity"], current)
        old = self._log_prob(batch["old_velocity"], current)
        return torch.where(batch["mask"], new - old.detach(), 0.0)

    def _log_prob(self, velocity: Tensor, current: LogProbs) -> Tensor:
        """[b, t]: of the weights that predict this velocity, up to a constant."""
        power = self.config.power
        error = distance(velocity, current.extra["target_velocity"]) + LEAST
        return -current.extra["sigma"] / power * error**power
