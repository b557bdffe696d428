"""Two rewards: a function, and a class with settings."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise_controller.world import RADIUS

Point = Sequence[float]


def arrives(
    completions: Sequence[Mapping[str, Any]],
    start: Sequence[Point],
    goal: Sequence[Point],
    partial: float = 0.5,
) -> list[float]:
    """1.0 at the goal; else partial * (share of the way done), at least 0.

    `start` and `goal` are columns of the prompts, `partial` is set in the configuration.
    """
    rewards = []
    for completion, begin, end in zip(completions, start, goal, strict=True):
        left = math.dist(completion["path"][-1], end)
        whole = max(math.dist(begin, end), RADIUS)
        rewards.append(1.0 if left <= RADIUS else partial * max(0.0, 1.0 - left / whole))
    return rewards


class SmoothControl:
    """Rewards smooth pushes: max(0, 1 - mean |push_t - push_{t-1}| / tolerance).

    None, "does not apply", for fewer than two pushes.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        tolerance: float = Field(
            default=1.0, gt=0, description="mean difference from which the reward is 0"
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __call__(self, completions: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return [self._one(completion["pushes"]) for completion in completions]

    def _one(self, pushes: Sequence[Point]) -> float | None:
        steps = [math.dist(a, b) for a, b in pairwise(pushes)]
        if not steps:
            return None
        return max(0.0, 1.0 - sum(steps) / len(steps) / self.config.tolerance)
