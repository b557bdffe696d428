"""Weights: what each reward counts at a step: a number, a schedule's value, or a multiplier.

To maximise sum_k w_k r_k while a measured m stays at most U is, with s the size of U,

    min over l >= 0 of max over the policy of  sum_k w_k r_k - l (m - U) / s

so m joins the sum with the weight -l / s (the constant U has no gradient), and l rises while the
mean of m is above U. For at least L the signs turn.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.balance import Bound, Schedule
from groupwise.errors import UserError
from groupwise.rewards import Reward


class Weights:
    """The weights of several rewards, in their order; its state are the multipliers.

    All processes have the same ones: means are over all of them.
    """

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self.rewards = tuple(rewards)
        self.multipliers: dict[str, dict[Bound, float]] = {
            reward.name: dict.fromkeys(reward.constraint.bounds, reward.constraint.start)
            for reward in rewards
            if reward.constraint is not None
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

    def metrics(self, step: int) -> dict[str, float]:
        """The weights of a step that follow a schedule, and all multipliers, by name."""
        scheduled = {
            f"weights/{reward.name}": reward.weight.at(step)
            for reward in self.rewards
            if isinstance(reward.weight, Schedule)
        }
        return scheduled | {
            f"multipliers/{name}/{bound}": value
            for name, of_bounds in self.multipliers.items()
            for bound, value in of_bounds.items()
        }

    def ascend(self, means: Mapping[str, float]) -> None:
        """Dual ascent on the means of a step, by name; a NaN, of no values, moves nothing."""
        for reward in self.rewards:
            mean = means.get(reward.name, math.nan)
            if reward.constraint is not None and not math.isnan(mean):
                multipliers = self.multipliers[reward.name]
                for bound, value in multipliers.items():
                    multipliers[bound] = reward.constraint.ascended(value, bound, mean)

    def state_dict(self) -> dict[str, Any]:
        return {name: dict(of_bounds) for name, of_bounds in self.multipliers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bounds that the state lacks start anew, and those it has beside them are left out.

        Raises UserError where a multiplier is not a number that it can be.
        """
        for reward in self.rewards:
            if reward.constraint is None:
                continue
            multipliers, saved = self.multipliers[reward.name], state.get(reward.name, {})
            for bound in multipliers.keys() & dict(saved).keys():
                value = saved[bound]
                if not isinstance(value, int | float) or not 0 <= value < math.inf:
                    raise UserError(
                        f"reward {reward.name!r}: its multiplier in the checkpoint is {value!r}, "
                        f"expected a number from 0"
                    )
                multipliers[bound] = min(float(value), reward.constraint.largest)

    def _at(self, reward: Reward, step: int) -> float:
        if reward.constraint is not None:
            multipliers = self.multipliers[reward.name]
            return multipliers.get("at_least", 0.0) - multipliers.get("at_most", 0.0)
        return reward.weight.at(step) if isinstance(reward.weight, Schedule) else reward.weight
