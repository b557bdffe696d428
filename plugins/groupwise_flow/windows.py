"""Which denoising steps are decisions: drawn with noise and trained on; the others are ODE steps.

The last step is never one: its Gaussian is so sharp that its log-prob says nothing.
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

WindowKind = Literal["all", "fixed", "random", "sliding"]


_KINDS_OF: dict[str, tuple[WindowKind, ...]] = {
    "start": ("fixed", "sliding"),
    "until": ("random",),
    "stride": ("sliding",),
    "every": ("sliding",),
}


class Window(BaseModel):
    """Where the decisions of a rollout lie among the sampling steps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: WindowKind = Field(
        "all",
        description="all steps but the last; a fixed window; one at a random start for each group "
        "(Flow-GRPO-Fast); or one that slides as training goes on (MixGRPO)",
    )
    size: int | None = Field(None, ge=1, description="decisions in the window; not for `all`")
    start: int = Field(0, ge=0, description="first step of a fixed or sliding window")
    until: float = Field(
        0.5, gt=0, le=1, description="a random window starts within this share of the steps"
    )
    stride: int = Field(1, ge=1, description="steps by which a sliding window moves")
    every: int = Field(25, ge=1, description="training steps after which a sliding window moves")

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.kind == "all" and self.size is not None:
            raise ValueError("kind: all takes every step but the last, so it has no size")
        if self.kind != "all" and self.size is None:
            raise ValueError(f"kind: {self.kind} needs a size")
        for name, kinds in _KINDS_OF.items():
            if name in self.model_fields_set and self.kind not in kinds:
                raise ValueError(f"{name} has no effect with kind: {self.kind}; remove it")
        return self

    def length(self, steps: int) -> int:
        """Decisions of a rollout of `steps` steps; ValueError where the window does not fit."""
        if self.kind == "all":
            length, end = steps - 1, steps - 1
        else:
            assert self.size is not None
            length = self.size
            end = length + (self.start if self.kind in ("fixed", "sliding") else 0)
        if length < 1 or end > steps - 1:
            raise ValueError(
                f"the window ends at step {end}, and of {steps} steps the first {steps - 1} can "
                f"be decisions (the last never is)"
            )
        return length

    def starts(self, steps: int, seeds: Sequence[int], step: int) -> Tensor:
        """[n] int64: the first decision of each group, by its seed and the training step."""
        length = self.length(steps)
        last = steps - 1 - length
        if self.kind == "sliding":
            moved = self.start + (step // self.every) * self.stride
            return torch.full((len(seeds),), moved % (last + 1))
        if self.kind == "random":
            choices = min(last + 1, max(1, _steps_within(self.until, steps)))
            return torch.tensor([_hashed(seed) % choices for seed in seeds])
        return torch.full((len(seeds),), self.start if self.kind == "fixed" else 0)


def _steps_within(share: float, steps: int) -> int:
    """Whole steps within a share of them; 15/22 of 22 are 15, though as floats they are not quite.

    The share is read as the simplest fraction near it, exact for decimals of up to four places.
    """
    return int(Fraction(share).limit_denominator(10_000) * steps)


def _hashed(seed: int) -> int:
    """A number with no visible relation to the noise that the same seed draws."""
    digest = hashlib.blake2b(f"window/{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
