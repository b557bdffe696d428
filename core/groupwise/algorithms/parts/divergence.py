"""Divergence: what holds a policy near its reference, and how much it counts in each step."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from groupwise.algorithms.parts.part import Options, Part
from groupwise.kit.schedule import Schedule

BETA = "beta"
"""The name among `Algorithm.adapted`, and of the metric."""


class KLTarget(Options):
    """A beta that rises while the KL is above its target, and falls while it is below.

    The proportional controller of Ziegler et al., arXiv:1909.08593, section 2.2: with the measured
    KL of a step,

        e = clip((KL - target) / target, -clip, clip),  beta <- beta (1 + gain e)

    Beta stays between `least` and `largest`, which the paper does not have: a run begins at a KL of
    0, so that beta falls at first, and without a limit it would take as long to rise again.
    """

    target: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="the KL to keep, as the metric `kl` measures it: the mean of a decision",
    )
    start: float = Field(
        0.04, gt=0, allow_inf_nan=False, description="beta of the first step, never 0"
    )
    gain: float = Field(0.1, gt=0, le=1, description="how far an error of 1 changes beta")
    clip: float = Field(
        0.2, gt=0, lt=1, description="the largest error that counts: beta changes by gain x clip"
    )
    least: float = Field(
        0.001, gt=0, allow_inf_nan=False, description="lower limit of beta while the KL is small"
    )
    largest: float = Field(1.0, gt=0, allow_inf_nan=False, description="upper limit of beta")

    @model_validator(mode="after")
    def _starts_within(self) -> Self:
        if not self.least <= self.start <= self.largest:
            raise ValueError(
                f"beta must start between least and largest: start is {self.start:g}, least "
                f"{self.least:g} and largest {self.largest:g}"
            )
        return self

    def after(self, beta: float, kl: float) -> float:
        """The beta of the next step; a KL that is not finite changes nothing."""
        if not math.isfinite(kl):
            return beta
        error = (kl - self.target) / self.target
        moved = beta * (1.0 + self.gain * min(max(error, -self.clip), self.clip))
        return min(max(moved, self.least), self.largest)


class BetaSchedule(Schedule):
    """A beta that changes from `start` to `end` over the first `steps` steps, then stays."""

    @model_validator(mode="after")
    def _is_never_negative(self) -> Self:
        if min(self.start, self.end) < 0:
            raise ValueError(
                f"beta must not be negative: start is {self.start:g} and end {self.end:g}"
            )
        return self


def _kind(value: Any) -> str:
    if isinstance(value, KLTarget) or (isinstance(value, Mapping) and "target" in value):
        return "KLTarget"
    return "BetaSchedule" if isinstance(value, Mapping | Schedule) else "float"


# Discriminated, so that a mistake in one of them is not also reported as one in the others.
Beta = Annotated[
    Annotated[float, Field(ge=0), Tag("float")]
    | Annotated[BetaSchedule, Tag("BetaSchedule")]
    | Annotated[KLTarget, Tag("KLTarget")],
    Discriminator(_kind),
]
"""The type of the option: a number, `{start, end, steps}`, or `{target}`."""


class Divergence(Part):
    """A distance from the reference and its weight, `beta`, which may change from step to step."""

    slot = "divergence"

    class Config(Options):
        beta: Beta = Field(
            0.0,
            description="weight of the KL to the reference in the loss: a number, 0 for none; a "
            "schedule; or a target for the KL",
        )

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        match self.config.beta:
            case Schedule() | KLTarget() as moving:
                whole.adapted[BETA] = moving.start

    @property
    def beta(self) -> float:
        """Its value in this step."""
        constant = self.config.beta
        return constant if isinstance(constant, float | int) else self.whole.adapted[BETA]

    def begin_step(self, step: int) -> None:
        if isinstance(self.config.beta, Schedule):
            self.whole.adapted[BETA] = self.config.beta.at(step)

    def after_updates(self, metrics: Mapping[str, float]) -> None:
        if isinstance(self.config.beta, KLTarget):
            kl = metrics.get("kl", math.nan)
            self.whole.adapted[BETA] = self.config.beta.after(self.beta, kl)
