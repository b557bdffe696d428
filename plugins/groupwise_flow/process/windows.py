"""Windows: which denoising steps are decisions (drawn with noise, and trained on), not ODE steps.

The last step is never a decision: its std is close to 0, so its log-prob carries no signal.
"""

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from groupwise_flow.process.seeds import hashed

WindowKind = Literal["all", "fixed", "random", "sliding"]


_KINDS_OF: dict[str, tuple[WindowKind, ...]] = {
    "start": ("fixed", "sliding"),
    "until": ("random",),
    "stride": ("sliding",),
    "every": ("sliding",),
    "shrink": ("sliding",),
    "shrink_after": ("sliding",),
}


class Window(BaseModel):
    """Which of a rollout's sampling steps are decisions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: WindowKind = Field(
        "all",
        description="all steps but the last; a fixed window; a window at a random start for each "
        "group (Flow-GRPO-Fast); or one that slides during training (MixGRPO). A small window "
        "saves training time",
    )
    size: int | None = Field(None, ge=1, description="decisions in the window; not for `all`")
    start: int = Field(0, ge=0, description="first step of a fixed or sliding window")
    until: float = Field(
        0.5, gt=0, le=1, description="a random window starts before step until * steps"
    )
    stride: int = Field(1, ge=1, description="steps by which a sliding window moves")
    every: int = Field(25, ge=1, description="training steps after which a sliding window moves")
    shrink: float = Field(
        0.0,
        ge=0,
        description="a sliding window stays shorter at late steps: where it begins k steps after "
        "`shrink_after`, for every * exp(-shrink * k) training steps, rounded up",
    )
    shrink_after: int = Field(
        0, ge=0, description="the last step at which a shrinking window still stays for `every`"
    )

    share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the window's decisions that each image is trained on, drawn for each "
        "image by itself; all of them are drawn with noise (DanceGRPO has 0.6 of all)",
    )

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.kind == "all" and self.size is not None:
            raise ValueError(
                "kind: all takes every step but the last; leave size unset, or set kind: random"
            )
        if self.kind != "all" and self.size is None:
            raise ValueError(f"kind: {self.kind} needs a size")
        for name, kinds in _KINDS_OF.items():
            if name in self.model_fields_set and self.kind not in kinds:
                raise ValueError(f"{name} has no effect with kind: {self.kind}; remove it")
        if not self.shrink and "shrink_after" in self.model_fields_set:
            raise ValueError("shrink_after has no effect without shrink; set it, or remove both")
        return self

    def length(self, steps: int) -> int:
        """Number of decisions in `steps` steps. Raises ValueError where the window does not fit."""
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
        if not _steps_within(self.share, length):
            raise ValueError(
                f"a share of {self.share:g} of {length} decisions is none: it must be at least "
                f"1/{length}"
            )
        return length

    def check(self, steps: int) -> None:
        """Raise ValueError where the window does not fit, or slides and has one place only."""
        length = self.length(steps)
        if self.kind == "sliding" and len({*self._firsts(steps)}) == 1:
            raise ValueError(
                f"a window of {length} decisions never slides: in {steps} steps, moved by stride "
                f"{self.stride}, it has one place; set kind: fixed, or a smaller size"
            )

    def starts(self, steps: int, seeds: Sequence[int], step: int) -> Tensor:
        """[n] int64: the first decision of each group, by its seed and the training step."""
        firsts = self._firsts(steps)
        if self.kind == "random":
            return torch.tensor([firsts[hashed(f"window/{seed}") % len(firsts)] for seed in seeds])
        return torch.full((len(seeds),), firsts[self._place(firsts, step)])

    def trained(self, steps: int, seeds: Sequence[int]) -> Tensor:
        """[n, decisions] bool: the decisions that each rollout is trained on, by its seed.

        As in DanceGRPO's code (arXiv:2505.07818): floor(share x decisions) of them, each as likely.
        """
        length = self.length(steps)
        trained = torch.zeros(len(seeds), length, dtype=torch.bool)
        for row, seed in enumerate(seeds):
            draw = random.Random(hashed(f"trained/{seed}"))
            trained[row, draw.sample(range(length), _steps_within(self.share, length))] = True
        return trained

    def _place(self, firsts: Sequence[int], step: int) -> int:
        """The index among `firsts` of the place where the window is in a training step."""
        if self.kind != "sliding":
            return 0
        stays = [self._stay(first) for first in firsts]
        left, place = step % sum(stays), 0
        while left >= stays[place]:
            left, place = left - stays[place], place + 1
        return place

    def _stay(self, first: int) -> int:
        """Training steps for which a sliding window begins at this step.

        As MixGRPO's exponential decay, arXiv:2507.21802.
        """
        late = max(0, first - self.shrink_after)
        return math.ceil(self.every * math.exp(-self.shrink * late))

    def decisions(self, steps: int) -> list[int]:
        """The steps, of 0 to steps - 2, that are decisions of any group in a long run."""
        length = self.length(steps)
        return sorted({first + n for first in self._firsts(steps) for n in range(length)})

    def _firsts(self, steps: int) -> list[int]:
        """The steps at which the window can begin; of a sliding one in the order of its moves."""
        places = steps - self.length(steps)  # where a window of this length fits
        if self.kind == "random":
            return list(range(min(places, max(1, _steps_within(self.until, steps)))))
        moves = range(places if self.kind == "sliding" else 1)
        start = 0 if self.kind == "all" else self.start
        return [(start + move * self.stride) % places for move in moves]


def _steps_within(share: float, steps: int) -> int:
    """floor(share * steps), without float error: 15/22 of 22 steps is 15, not 14.

    The share is read as the nearest simple fraction, exact for decimals of up to four places.
    """
    return int(Fraction(share).limit_denominator(10_000) * steps)
