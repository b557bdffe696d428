"""RewardWeights: of each reward at a step: a number, a schedule's value, or a multiplier.

Maximising sum_k w_k r_k subject to mean(m) <= U is, with s = |U|,

    min over l >= 0 of max over the policy of  sum_k w_k r_k - l (m - U) / s

so m joins the sum with the weight -l / s (the constant U has no gradient), and l rises while
mean(m) > U. For a lower bound, mean(m) >= L, the signs are reversed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from groupwise.kit.constraint import Bound
from groupwise.kit.errors import UserError
from groupwise.kit.metric_names import Family
from groupwise.kit.schedule import Schedule
from groupwise.rewards import Reward


class Ascent(BaseModel, strict=True):
    """The state of the multiplier of one bound: the integral of violations, and the last one."""

    integral: float = Field(ge=0, allow_inf_nan=False)
    violation: float = Field(default=0.0, allow_inf_nan=False)


class RewardWeights:
    """The weights of several rewards, in their order; its state is that of the multipliers.

    All processes have the same weights, since the means are over all processes.
    """

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self.rewards = tuple(rewards)
        self.constraints = {r.name: r.constraint for r in rewards if r.constraint is not None}
        self.ascents: dict[str, dict[Bound, Ascent]] = {
            name: {bound: Ascent(integral=constraint.start) for bound in constraint.bounds}
            for name, constraint in self.constraints.items()
        }

    def at(self, step: int) -> tuple[float, ...]:
        """The weight of each reward at a step; the first step is 0."""
        return tuple(self._at(reward, step) for reward in self.rewards)

    @property
    def final(self) -> tuple[float, ...]:
        """The weights after all schedules have ended, 0 for constraints.

        They do not change over the run, so that evaluations by them can be compared.
        """
        weights = [0.0 if r.constraint is not None else r.weight for r in self.rewards]
        return tuple(w.end if isinstance(w, Schedule) else w for w in weights)

    @property
    def scales(self) -> tuple[float, ...]:
        """The divisor of each reward's values: 1, or the size of a constraint's bound."""
        return tuple(1.0 if r.constraint is None else r.constraint.scale for r in self.rewards)

    def multipliers(self, name: str) -> dict[Bound, float]:
        """The multipliers of a constrained reward's bounds; {} for any other reward."""
        return {
            bound: self.constraints[name].multiplier(ascent.integral, ascent.violation)
            for bound, ascent in self.ascents.get(name, {}).items()
        }

    def metrics(self, step: int) -> dict[str, float]:
        """Scheduled weights at a step and all multipliers, by name."""
        scheduled = {
            f"{Family.WEIGHTS}/{reward.name}": reward.weight.at(step)
            for reward in self.rewards
            if isinstance(reward.weight, Schedule) and reward.constraint is None
        }
        return scheduled | {
            f"{Family.MULTIPLIERS}/{name}/{bound}": value
            for name in self.constraints
            for bound, value in self.multipliers(name).items()
        }

    def ascend(self, means: Mapping[str, float]) -> None:
        """Dual ascent on a step's means, by name; NaN (no values) changes nothing."""
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
        """Load the state; bounds that it lacks start afresh, and others in it are ignored.

        Raises UserError if it is not the state of a multiplier.
        """
        for name, of_bounds in self.ascents.items():
            try:
                saved = {bound: state[name][bound] for bound in of_bounds if bound in state[name]}
                of_bounds |= {b: Ascent.model_validate(value) for b, value in saved.items()}
            except KeyError:  # it had no constraint before
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
