"""ImportanceWeights: for rollouts of another sampler, or of older weights."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts.composed import Composed, Options


class ImportanceWeights(Composed):
    """Weights policy / sampler, bounded; see `objective.importance_weights`."""

    class Config(Options):
        importance: objective.Level | Literal["none"] = Field(
            "token",
            description="importance weights policy / sampler for rollouts of another sampler or "
            "of older weights: of each decision (token), or of the whole completion (sequence)",
        )
        importance_mode: objective.Mode = Field(
            "truncate", description="importance weights above the cap are set to it, or to 0 (mask)"
        )
        importance_cap: float = Field(2.0, gt=0, description="cap of importance weights")

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.corrects = self.config.importance != "none"
        self.couples_decisions = self.couples_decisions or self.config.importance == "sequence"

    def importance(self, batch: Batch) -> Tensor | None:
        """[b, t]: importance weights of decisions that another sampler, or older weights, drew.

        None if the current policy drew them.
        """
        config = self.config
        if config.importance == "none" or "sampler_log_probs" not in batch:
            return None
        return objective.importance_weights(
            batch["old_log_probs"],
            batch["sampler_log_probs"],
            batch["mask"],
            level=config.importance,
            mode=config.importance_mode,
            cap=config.importance_cap,
        )
