"""Following: a copy of the weights that follows them, at a pace that may slow down."""

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from groupwise.algorithms.parts import Composed, Options
from groupwise.weights import KeptWeights


class Following(Composed):
    """After each step: copy <- decay copy + (1 - decay) current weights, decay = min(decay,
    decay_rise (steps - decay_delay)).

    With LoRA the factors are blended, as in the published code of DiffusionNFT and AWM, and not
    their products.

    follower: the name of the copy, which is blended where `copies` has it.
    """

    follower: ClassVar[str]

    class Config(Options):
        decay: float = Field(
            0.0,
            ge=0,
            lt=1,
            description="after a step, the copy of the weights becomes decay x itself + (1 - "
            "decay) x the current weights",
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
            rises = self.decay_rise is not None and "decay_rise" in self.model_fields_set
            if self.decay == 0 and rises:
                raise ValueError("decay_rise has no effect with decay: 0; set decay, or remove it")
            if self.decay_rise is None and self.decay_delay:
                raise ValueError("decay_delay has no effect without decay_rise; remove it")
            return self

        def decay_after(self, step: int) -> float:
            """The decay at the end of a step; the first step is 1."""
            if self.decay_rise is None:
                return self.decay
            return min(self.decay, self.decay_rise * max(0, step - self.decay_delay))

    config: Config

    def end_step(self, weights: KeptWeights, step: int) -> Mapping[str, float]:
        """Blend the copy, if there is one; metric `decay`."""
        if self.follower not in self.copies:
            return {}
        decay = self.config.decay_after(step)
        weights.blend(self.follower, decay)
        return {"decay": decay}
