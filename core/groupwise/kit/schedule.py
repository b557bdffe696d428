"""Schedule: a number of a configuration that changes with the steps of a run, such as a weight."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Schedule(BaseModel):
    """A weight that changes from `start` to `end` over the first `steps` steps and then stays."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    start: float = Field(description="the weight of the first step")
    end: float = Field(description="the weight from `steps` steps on")
    steps: int = Field(
        ge=1, description="steps over which it changes; not more than the run's `train.steps`"
    )
    shape: Literal["linear", "cosine", "jump"] = Field(
        default="linear",
        description="how it changes: linearly, as a half cosine (slowly at both ends), or in one "
        "jump after `steps`",
    )

    def at(self, step: int) -> float:
        """The weight at a step; the first step is 0."""
        done = min(1.0, step / self.steps)
        if self.shape == "cosine":
            done = 0.5 * (1.0 - math.cos(math.pi * done))
        elif self.shape == "jump":
            done = math.floor(done)
        return (1.0 - done) * self.start + done * self.end
