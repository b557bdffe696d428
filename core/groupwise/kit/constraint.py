"""Constraint: bounds on the mean of a reward, which multipliers enforce in place of a weight."""

import math
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Bound = Literal["at_most", "at_least"]


class Constraint(BaseModel):
    """Bounds on the mean of a reward, each enforced by a Lagrange multiplier.

    Plain dual ascent oscillates: the mean overshoots its bound, returns, and overshoots again for
    ever where the policy must mix two ways of answering. Adding a multiple of the last violation
    damps this, as in the augmented Lagrangian and in Stooke et al., arXiv:2007.03964, whose K_I and
    K_P are `learning_rate` and `damping`. With v the violation in units of the bound,

        i <- clip(i + learning_rate v, 0, largest),  multiplier = clip(i + damping v, 0, largest)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    at_most: float | None = Field(default=None, description="the mean's upper bound")
    at_least: float | None = Field(default=None, description="the mean's lower bound")
    learning_rate: float = Field(
        default=0.1,
        gt=0,
        description="per step, the multiplier rises by learning_rate x violation / bound",
    )
    damping: float = Field(
        default=20.0,
        ge=0,
        description="damping x violation / bound is added to the multiplier for the next step "
        "only, against oscillation; 0 is plain dual ascent",
    )
    start: float = Field(default=0.0, ge=0, description="the multiplier of the first step")
    largest: float = Field(default=10.0, gt=0, description="upper limit of the multiplier")

    @model_validator(mode="after")
    def _has_bounds(self) -> Self:
        if not self.bounds:
            raise ValueError("a constraint needs a bound: set at_most, at_least or both")
        lower, upper = self.bounds.get("at_least", -math.inf), self.bounds.get("at_most", math.inf)
        if lower > upper:
            raise ValueError(
                f"the bounds cross: nothing is at least {lower:g} and at most {upper:g}"
            )
        if self.start > self.largest:
            raise ValueError(
                f"the multiplier cannot start at {self.start:g}, above its largest value "
                f"{self.largest:g}; raise `largest` or lower `start`"
            )
        return self

    @property
    def bounds(self) -> Mapping[Bound, float]:
        bounds: dict[Bound, float | None] = {"at_most": self.at_most, "at_least": self.at_least}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def scale(self) -> float:
        """The unit of a violation: the larger |bound|, or 1 if that is 0."""
        return max(map(abs, self.bounds.values())) or 1.0

    def violation(self, bound: Bound, mean: float) -> float:
        """(mean - at_most) / scale, or (at_least - mean) / scale; above 0 if a bound is broken."""
        beyond = mean - self.bounds[bound] if bound == "at_most" else self.bounds[bound] - mean
        return beyond / self.scale

    def ascended(self, integral: float, violation: float) -> float:
        """Dual ascent: i <- clip(i + learning_rate x violation, 0, largest)."""
        return self._within(integral + self.learning_rate * violation)

    def multiplier(self, integral: float, violation: float) -> float:
        """The multiplier of the next step: clip(i + damping x violation, 0, largest)."""
        return self._within(integral + self.damping * violation)

    def _within(self, value: float) -> float:
        return min(max(value, 0.0), self.largest)
