"""ImportanceWeights: for rollouts of another sampler, or of older weights."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, ValidationInfo, model_validator
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts.part import Options, Part
from groupwise.rollouts import LogProbs

BOUNDS = ("importance_mode", "importance_cap", "importance_floor")
"""The options that bound weights."""


class ImportanceWeights(Part):
    """Corrects for rollouts that the current policy did not draw, by the ratio policy / sampler.

    Either by bounded weights, see `objective.importance_weights`: the surrogate's ratio is then 1
    before the step's first update. Or the ratio is the surrogate's own (`importance: ratio`), so
    that a clip keeps the policy near what drew the rollouts, as in PPO, arXiv:1707.06347, and not
    near the policy before the step, as in decoupled PPO, arXiv:2110.00641.
    """

    slot = "importance"

    class Config(Options):
        importance: Literal["token", "sequence", "ratio", "none"] = Field(
            "token",
            description="how to correct for another sampler or older weights, by the ratio "
            "policy / sampler: a weight for each decision (token), or for the whole completion "
            "(sequence); or the ratio that is clipped (ratio), the default with train.ahead "
            "unless the clip range is narrow (gspo, luspo, images) or there is none (cispo, sapo)",
        )
        importance_mode: objective.Mode = Field(
            "truncate",
            description="importance weights beyond the cap or the floor are set to it, or to 0 "
            "(mask): IcePop is mask, 0.5 and 5; TRL's default is sequence, mask and 3",
        )
        importance_cap: float = Field(2.0, gt=0, description="cap of importance weights")
        importance_floor: float = Field(0.0, ge=0, description="floor of importance weights")
        off_policy_mask: float | None = Field(
            None,
            gt=0,
            description="leave out completions with a negative advantage whose decisions have "
            "become less likely since they were sampled, on average by more than this, in nats: "
            "DeepSeek-V3.2, for rollouts that are several updates old",
        )

        ahead: ClassVar[str] = "ratio"
        """The default of `importance` with train.ahead."""

        @model_validator(mode="before")
        @classmethod
        def _by_ahead(cls, options: Any, info: ValidationInfo) -> Any:
            # An option that bounds weights asks for weights.
            chosen = isinstance(options, dict) and {"importance", *BOUNDS}.isdisjoint(options)
            if chosen and (info.context or {}).get("ahead"):
                return {**options, "importance": cls.ahead}
            return options

        @model_validator(mode="after")
        def _bounds_of_weights(self) -> Self:
            if self.importance_floor >= self.importance_cap:
                raise ValueError(
                    f"importance_floor must be below importance_cap = {self.importance_cap:g}, "
                    f"found {self.importance_floor:g}"
                )
            unused = [name for name in BOUNDS if name in self.model_fields_set]
            if unused and self.importance == "ratio":
                raise ValueError(
                    f"{unused[0]} bounds importance weights, but with importance: ratio there are "
                    f"none: the clip range bounds the ratio; leave it out, or set importance: token"
                )
            return self

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.corrects = self.config.importance != "none"
        by_sequence = self.config.importance == "sequence"
        by_sequence |= self.config.off_policy_mask is not None
        self.couples_decisions = self.whole.couples_decisions or by_sequence

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """With `off_policy_mask` the metric of that name, 1 at the decisions that are left out."""
        if self.config.off_policy_mask is None:
            return {}
        return {"off_policy_mask": self._off_policy(current, batch).to(torch.float32)}

    def importance(self, batch: Batch) -> Tensor | None:
        """[b, t]: importance weights of decisions that another sampler, or older weights, drew.

        None if the current policy drew them, or if the surrogate has their ratio.
        """
        config, level = self.config, self.config.importance
        if level == "none" or "sampler_log_probs" not in batch:
            return None
        if level == "ratio":  # `seen` puts it into the surrogate
            return None
        return objective.importance_weights(
            batch["old_log_probs"],
            batch["sampler_log_probs"],
            batch["mask"],
            level=level,
            mode=config.importance_mode,
            cap=config.importance_cap,
            floor=config.importance_floor,
        )

    def seen(self, current: LogProbs, batch: Batch) -> Batch:
        """The batch that the surrogate sees: with `importance: ratio` its old log-probs are the
        sampler's; advantages are 0 where `off_policy_mask` leaves decisions out."""
        changed = dict(batch)
        if self.config.off_policy_mask is not None:
            advantages = objective.per_decision(batch["advantages"])
            changed["advantages"] = advantages.masked_fill(self._off_policy(current, batch), 0.0)
        if self.config.importance == "ratio" and "sampler_log_probs" in batch:
            changed["old_log_probs"] = batch["sampler_log_probs"]
        return changed

    def _off_policy(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t] bool: the decisions that `off_policy_mask` leaves out."""
        assert current.log_probs is not None
        assert self.config.off_policy_mask is not None
        return objective.is_off_policy(
            current.log_probs,
            batch.get("sampler_log_probs", batch["old_log_probs"]),
            batch["advantages"],
            batch["mask"],
            limit=self.config.off_policy_mask,
        )
