"""NFT: DiffusionNFT, learns from finished images what to predict and what not to.

When to use it: the first to try for `policy: forward_process`. It needs no log-probs and no path,
so images are drawn by any sampler, as in use; good and bad images both teach, and what a bad image
teaches is bounded, unlike in `elbo_grpo` and `awm`. It assumes a reward that ranks finished images;
rewards of single steps cannot be used.

Where implementations differ: the authors blend the weights that sample after each step, by a decay
that grows (`decay: 0.5, decay_rise: 0.001`; for OCR `decay: 0.999, decay_delay: 75, decay_rise:
0.0075`). By default it is 0 here: the current weights sample, and no copy is needed. With LoRA the
blend is one of the factors, as theirs. They train with b = 1, for OCR 0.1, beta 1e-4 and LoRA at a
learning rate of 3e-4, draw without guidance by 10 steps, and train on copies at all levels.
"""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator
from torch import Tensor

from groupwise.advantages import Scale
from groupwise.algorithm import Algorithm, Batch
from groupwise.algorithms.parts import Options
from groupwise.rollouts import LogProbs
from groupwise.weights import KeptWeights
from groupwise_flow.algorithms.velocities import Matching, distance, expanded

SAMPLING = "sampling"
"""The name of the weights that sample, where they are not the current ones."""
LEAST = 1e-5
"""The least mean error by which a squared error is divided."""


class NFT(Matching):
    """DiffusionNFT, arXiv:2509.16117: towards good images and away from bad ones, without a path.

        r = A / (2 clip) + 1/2, A clipped to [-clip, clip]
        v+ = b v + (1 - b) v_old; v- = (1 + b) v_old - b v
        loss = (clip / b) (r |x+ - x0|^2 / w+ + (1 - r) |x- - x0|^2 / w-)

    plus beta |v - v_reference|^2. x0 is the finished latent, x+ = x - sigma v+ what v+ predicts of
    it from its noised copy x, and w+ the mean of |x+ - x0|, without gradient. v_old is the velocity
    of the weights that drew the images.
    """

    class Config(Matching.Config):
        scale: Scale = Field(
            "batch",
            description="divide advantages by the std of the group, of the batch, or by none",
        )
        b: float = Field(
            1.0, gt=0, description="strength of guidance: how far v+ and v- are from v_old"
        )
        decay: float = Field(
            0.0,
            ge=0,
            lt=1,
            description="after a step, the weights that sample become decay x themselves + (1 - "
            "decay) x the current ones; 0: the current ones sample",
        )
        decay_rise: float | None = Field(
            None,
            gt=0,
            description="the decay grows from 0 by this in every step, up to `decay`; it does not "
            "change if unset",
        )
        decay_delay: int = Field(0, ge=0, description="steps before the decay grows")

        @model_validator(mode="after")
        def _rises_to_a_decay(self) -> Self:
            if self.decay == 0 and self.decay_rise is not None:
                raise ValueError("decay_rise has no effect with decay: 0; set decay, or remove it")
            if self.decay_rise is None and "decay_delay" in self.model_fields_set:
                raise ValueError("decay_delay has no effect without decay_rise; remove it")
            return self

        def decay_after(self, step: int) -> float:
            """The decay at the end of a step; the first step is 1."""
            if self.decay_rise is None:
                return self.decay
            return min(self.decay, self.decay_rise * max(0, step - self.decay_delay))

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs = frozenset({"velocity", "noised", "clean", "sigma"})
        self.old = frozenset({"velocity"})
        if self.config.decay:
            self.old = frozenset()
            self.copies = {SAMPLING: frozenset({"velocity"})}
            self.samples_with = SAMPLING

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """[B] bool: all that count. An advantage of 0 pulls towards the weights that sampled."""
        return Algorithm.active(self, targets)

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        config, velocity = self.config, current.extra["velocity"]
        old = batch["old_velocity" if "velocity" in self.old else f"{SAMPLING}_velocity"]
        share = batch["advantages"] / (2 * config.advantage_clip) + 0.5
        share = share.unsqueeze(1) if share.ndim == 1 else share
        towards = self._error(old + config.b * (velocity - old), current)
        away = self._error(old - config.b * (velocity - old), current)
        return config.advantage_clip / config.b * (share * towards + (1 - share) * away)

    @staticmethod
    def _error(velocity: Tensor, current: LogProbs) -> Tensor:
        """[b, t]: |x - x0|^2 / w of the clean latent x that this velocity predicts."""
        sigma, clean = current.extra["sigma"], current.extra["clean"]
        predicted = current.extra["noised"] - expanded(sigma, clean) * velocity
        size = (predicted - clean).detach().abs().flatten(2).mean(dim=2).clamp(min=LEAST)
        return distance(predicted, clean) / size

    def end_step(self, weights: KeptWeights, step: int) -> Mapping[str, float]:
        """Blend the weights that sample; metric `decay`."""
        if not self.copies:
            return {}
        decay = self.config.decay_after(step)
        weights.blend(SAMPLING, decay)
        return {"decay": decay}
