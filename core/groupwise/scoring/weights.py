"""Weights: what each reward counts at a step: a number, a schedule's value, or a multiplier.

To maximise sum_k w_k r_k while a measured m stays at most U is, with s the size of U,

    min over l >= 0 of max over the policy of  sum_k w_k r_k - l (m - U) / s

so m joins the sum with the weight -l / s (the constant U has no gradient), and l rises while the
mean of m is above U. For at least L the signs turn.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from groupwise.balance import Bound, Schedule
from groupwise.errors import UserError
from groupwise.rewards import Reward


class Ascent(BaseModel, strict=True):
    """Where the multiplier of one bound stands: what was summed up, and the last violation."""

    integral: float = Field(ge=0, allow_inf_nan=False)
    violation: float = Field(default=0.0, allow_inf_nan=False)


class Weights:
    """The weights of several rewards, in their order; its state is that of the multipliers.

    All processes have the same ones: means are over all of them.
    """

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self.rewards = tuple(rewards)
        self.constraints = {r.name: r.constraint for r in rewards if r.constraint is not None}
        self.ascents: dict[str, dict[Bound, Ascent]] = {
            name: {bound: Ascent(integral=constraint.start) for bound in constraint.bounds}
            for name, constraint in self.constraints.items()
        }

    def at(self, step: int) -> tuple[float, ...]:
        """What each reward counts in a step, the first being 0."""
        return tuple(self._at(reward, step) for reward in self.rewards)

    @property
    def final(self) -> tuple[float, ...]:
        """What each counts when schedules have ended, constraints apart.

        These do not change over a run, so a sum by them can be compared from first to last.
        """
        weights = [0.0 if r.constraint is not None else r.weight for r in self.rewards]
        return tuple(w.end if isinstance(w, Schedule) else w for w in weights)

    @property
    def scales(self) -> tuple[float, ...]:
        """What each reward's values are divided by before they are weighed."""
        return tuple(1.0 if r.constraint is None else r.constraint.scale for r in self.rewards)

    def multipliers(self, name: str) -> dict[Bound, float]:
        """Those of a constrained reward's bounds; {} of any other reward."""
        return {
            bound: self.constraints[name].multiplier(ascent.integral, ascent.violation)
            for bound, ascent in self.ascents.get(name, {}).items()
        }

    def metrics(self, step: int) -> dict[str, float]:
        """The weights of a step that follow a schedule, and all multipliers, by name."""
        scheduled = {
            f"weights/{reward.name}": reward.weight.at(step)
            for reward in self.rewards
            if isinstance(reward.weight, Schedule) and reward.constraint is None
        }
        return scheduled | {
            f"multipliers/{name}/{bound}": value
            for name in self.constraints
            for bound, value in self.multipliers(name).items()
        }

    def ascend(self, means: Mapping[str, float]) -> None:
        """Dual ascent on the means of a step, by name; a NaN, of no values, moves nothing."""
        for name, constraint in self.constraints.items():
            mean = means.get(name, math.nan)
            for bound, ascent in self.ascents[name].items():
                if not math.isnan(mean):
                    ascent.violation = constraint.violation(bound, mean)
                    ascent.integral = constraint.ascended(ascent.integral, ascent.violation)

    def state_dict(self) -> dict[str, Any]:
        return {
            name: {bound: ascent.model_dump() for bound, ascent in of_bounds.items()}
            for name, of_bounds in self.ascents.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bounds that the state lacks start anew, and those it has beside them are left out.

        Raises UserError where it is no state of a multiplier.
        """
        for name, of_bounds in self.ascents.items():
            try:
                saved = {bound: state[name][bound] for bound in of_bounds if bound in state[name]}
                of_bounds |= {b: Ascent.model_validate(value) for b, value in saved.items()}
            except KeyError:  # no constraint before
                continue
            except (TypeError, ValidationError) as error:
                raise UserError(
                    f"reward {name!r}: the checkpoint has no state of a multiplier for it, but "
                    f"{state!r}"
                ) from error

    def _at(self, reward: Reward, step: int) -> float:
        if reward.constraint is not None:
            multipliers = self.multipliers(reward.name)
            return multipliers.get("at_least", 0.0) - multipliers.get("at_most", 0.0)
        return reward.weight.at(step) if isinstance(reward.weight, Schedule) else reward.weight
