"""Observations: learn what the environment answers, beside what to do."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from groupwise.algorithm import OBSERVATIONS
from groupwise.algorithms.parts.part import Options, Part


class Observations(Part):
    """Adds the cross-entropy of an environment's words, times a weight, to the loss: ECHO.

        loss + observation_weight x mean of -log_prob over all tokens of observations in the update

    A world model's loss, of tools' answers and whatever else an environment says in the policy's
    context; prime-rl's default weight is 0.1. It needs no reward, so rollouts without an advantage
    teach, too.
    """

    slot = "observations"

    class Config(Options):
        observation_weight: float = Field(
            0.0,
            ge=0,
            description="weight of the cross-entropy of what tools and environments answer, a mean "
            "over the tokens of all answers in an update: ECHO, with 0.1",
        )

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.weight = self.config.observation_weight
        if self.weight:
            self.needs = frozenset({"observation_log_probs"})
            self.target_inputs = frozenset({OBSERVATIONS})

    def warning(self, metrics: Mapping[str, Any]) -> str | None:
        """That a step had no observations."""
        if not (self.weight and math.isnan(metrics.get("observation_loss", math.nan))):
            return None
        return (
            "algorithm.observation_weight: in this step no tool or environment answered, so there "
            "was nothing to predict"
        )
