"""GRPO: the group is the baseline.

When to use it: first, for any policy with log-probs and any reward; its variants change one thing
each. It assumes that completions of one prompt are comparable, so that their mean is a fair
baseline, and that some groups have different rewards: a group of equal ones teaches nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from groupwise import advantages, objective
from groupwise.algorithm import Algorithm, Batch
from groupwise.errors import UserError
from groupwise.rollouts import LogProbs, Rollouts

if TYPE_CHECKING:
    from groupwise.policy import Policy
    from groupwise.rewards import Scores


class GRPO(Algorithm):
    """Group Relative Policy Optimization: no critic, the group is the baseline.

    Each decision's loss is `clipped(rho, A)` plus beta times a KL estimate to the reference minus
    an entropy bonus; DeepSeekMath, arXiv:2402.03300, eq. 3. Defaults are TRL's, but for
    `normalize`, where TRL has DAPO's `token`, and for the ratio that TRL weighs the KL by.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        clip_low: float = Field(0.2, gt=0, description="clip range below 1")
        clip_high: float | None = Field(
            None, gt=0, description="clip range above 1; clip_low if unset"
        )
        beta: float = Field(0.0, ge=0, description="weight of the KL to the reference in the loss")
        kl: objective.Estimator = Field("k3", description="KL estimator: k1, k2 or k3")
        reference_every: int | None = Field(
            None, ge=1, description="steps from one move of the reference to the next; unset: none"
        )
        reference_mix: float = Field(
            1.0,
            gt=0,
            le=1,
            description="how much of the policy the reference takes when it moves; 1: it becomes "
            "the policy",
        )
        entropy: float = Field(0.0, description="weight of an entropy bonus")
        scale: advantages.Scale = Field(
            "group",
            description="what std advantages are divided by, if by any",
        )
        normalize: objective.Normalize = Field(
            "sequence", description="what losses are averaged over"
        )
        length: int | None = Field(
            None,
            ge=1,
            description="divisor of normalize: constant; the longest completion allowed if unset",
        )
        epsilon: float = Field(1e-4, gt=0, description="added to the std")
        refill: bool = Field(
            False, description="dynamic sampling: draw other prompts for groups of equal reward"
        )
        mask_truncated: bool = Field(False, description="learn nothing from truncated completions")
        importance: objective.Level | Literal["none"] = Field(
            "token",
            description="what another sampler than the policy, or older weights, drew counts by "
            "how likely the policy was to draw it: each decision alone, or the whole sequence",
        )
        importance_mode: objective.Mode = Field(
            "truncate", description="importance weights above the cap: cut at it, or 0"
        )
        importance_cap: float = Field(2.0, gt=0, description="cap of importance weights")

        @model_validator(mode="after")
        def _moves_what_is_there(self) -> Self:
            if self.reference_every is not None and self.beta == 0:
                raise ValueError(
                    "reference_every moves the reference, and with beta: 0 there is none; set beta "
                    "above 0, or leave reference_every out"
                )
            if self.reference_every is None and "reference_mix" in self.model_fields_set:
                raise ValueError(
                    "reference_mix says how the reference moves, and without reference_every it "
                    "never does; set reference_every, or leave reference_mix out"
                )
            return self

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        self.length = self.config.length
        self.reference = frozenset({"log_probs"} if self.config.beta > 0 else ())
        self.moves_reference = self.config.reference_every is not None
        self.refills = self.config.refill
        self.corrects = self.config.importance != "none"
        self.couples_decisions = self.couples_decisions or self.config.importance == "sequence"
        self.needs = frozenset({"log_probs", "entropy"} if self.config.entropy else {"log_probs"})

    def prepare(self, policy: "Policy") -> None:
        """The constant that `normalize: constant` divides by is the longest completion allowed."""
        self.length = self.config.length or policy.max_decisions
        if self.config.normalize == "constant" and self.length is None:
            raise UserError(
                "algorithm.length: normalize: constant needs the longest completion, and this "
                "policy does not state one; set it"
            )

    def end_step(self, policy: "Policy", step: int) -> Mapping[str, float]:
        """The reference becomes the policy (DeepSeekMath, arXiv:2402.03300, algorithm 1) or mixes
        with it (TR-DPO, arXiv:2404.09656), every `reference_every` steps.

        `reference/age` is the steps since it moved, `reference/moved` how far it did in this one.
        """
        every, mix = self.config.reference_every, self.config.reference_mix
        if every is None:
            return {}
        if step % every:
            return {"reference/age": step % every}
        moved = mix * policy.distance("reference")
        if mix == 1:
            policy.keep("reference")
        else:
            policy.blend("reference", 1 - mix)
        return {"reference/age": 0, "reference/moved": moved}

    def targets(
        self, scores: "Scores", rollouts: Rollouts, answers: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """`advantages` [B] or, with process rewards, [B, T]; `weights` [B, T]; both float32."""
        config = self.config
        relative = self.relative(scores, rollouts)
        if scores.steps is not None:
            relative = relative.unsqueeze(1) + self._process(scores.steps, rollouts)
        mask = rollouts.mask
        if config.mask_truncated:
            mask = mask & ~rollouts.truncated.unsqueeze(1)
        return {
            "advantages": relative.to(torch.float32),
            "weights": objective.weights(mask, normalize=config.normalize, length=self.length),
        }

    def relative(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B]: the advantages of whole completions; variants override this."""
        config = self.config
        return advantages.group_relative(
            scores.outcome, rollouts.groups, scale=config.scale, epsilon=config.epsilon
        )

    def _process(self, steps: Tensor, rollouts: Rollouts) -> Tensor:
        """[B, T]: the advantages that steps give the decisions before them."""
        config = self.config
        relative = advantages.process_supervision(
            steps, rollouts.groups, scale=config.scale, epsilon=config.epsilon
        )
        missing = rollouts.mask.shape[1] - relative.shape[1]
        return torch.nn.functional.pad(relative, (0, missing))

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """Rollouts with weight, and an advantage unless KL or entropy give a gradient anyway."""
        weighted = (targets["weights"] != 0).any(dim=1)
        if self.config.beta > 0 or self.config.entropy != 0:
            return weighted
        return weighted & (objective.per_decision(targets["advantages"]) != 0).any(dim=1)

    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: weights x (importance x clipped objective + beta KL - entropy bonus)."""
        config = self.config
        loss = self.surrogate(current, batch)
        if "sampler_log_probs" in batch and self.corrects:
            loss = loss * self.importance(batch)
        if config.beta > 0:
            loss = loss + config.beta * self.kl(current, batch)
        if config.entropy:
            assert current.entropy is not None
            loss = loss - config.entropy * current.entropy
        # where, not a product alone: padding may hold anything, and 0 x inf is NaN.
        return torch.where(batch["mask"], loss * batch["weights"], 0.0)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """Clip fraction, and importance weights, KL and entropy where there are any."""
        measured = {"clip_fraction": self.is_clipped(current, batch).to(torch.float32)}
        if "sampler_log_probs" in batch and self.corrects:
            measured["importance"] = self.importance(batch)
        if self.config.beta > 0:
            measured["kl"] = self.kl(current, batch)
        if current.entropy is not None:
            measured["entropy"] = current.entropy
        return measured

    @property
    def clip_high(self) -> float:
        return self.config.clip_low if self.config.clip_high is None else self.config.clip_high

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the importance log-ratio of each decision, 0 outside the mask; variants override
        this."""
        assert current.log_probs is not None
        return objective.token_log_ratio(current.log_probs, batch["old_log_probs"], batch["mask"])

    def importance(self, batch: Batch) -> Tensor:
        """[b, t]: what each decision counts that another sampler, or older weights, took."""
        config = self.config
        assert config.importance != "none"
        return objective.importance_weights(
            batch["old_log_probs"],
            batch["sampler_log_probs"],
            batch["mask"],
            level=config.importance,
            mode=config.importance_mode,
            cap=config.importance_cap,
        )

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the clipped objective of each decision, unweighted; variants override this."""
        return objective.clipped(
            self.log_ratio(current, batch),
            batch["advantages"],
            low=self.config.clip_low,
            high=self.clip_high,
        )

    def is_clipped(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t] bool: the decisions whose gradient `surrogate` cuts; variants override both."""
        return objective.is_clipped(
            self.log_ratio(current, batch),
            batch["advantages"],
            low=self.config.clip_low,
            high=self.clip_high,
        )

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the divergence from the reference of each decision; variants override this."""
        assert current.log_probs is not None
        # Masked before the exponential, as in token_log_ratio: afterwards its gradient is NaN.
        padding = ~batch["mask"]
        return objective.kl(
            current.log_probs.masked_fill(padding, 0.0),
            batch["reference_log_probs"].masked_fill(padding, 0.0),
            estimator=self.config.kl,
        )
