"""GRPO: the group is the baseline.

When to use it: first, for any policy with log-probs and any reward; its variants change one thing
each. It assumes that completions of one prompt are comparable, so that their mean is a fair
baseline, and that some groups have different rewards: a group of equal ones teaches nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self, get_args

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
    """GRPO, arXiv:2402.03300: no critic, the group is the baseline.

        A = (r - mean of the group) / (std of the group + epsilon)
        loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)

    plus beta times a KL to the reference, minus an entropy bonus; DeepSeekMath, eq. 3. rho is
    exp(log_prob - log_prob before the step's first update). Defaults are TRL's, but for
    `normalize`, where TRL has DAPO's `token`, and for the ratio that TRL weighs the KL by.
    `ratio_cap` is TRL's `delta` and verl's `clip_ratio_c`: see `objective.clipped`.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        clip_low: float = Field(0.2, gt=0, description="clip range below 1")
        clip_high: float | None = Field(
            None, gt=0, description="clip range above 1; clip_low if unset"
        )
        ratio_cap: float | None = Field(
            None,
            gt=1,
            description="two-sided or dual clip: where the advantage is negative, ratios above "
            "this count as this; more than 1 + clip_high",
        )
        beta: float = Field(0.0, ge=0, description="weight of the KL to the reference in the loss")
        kl: objective.Estimator | Literal["exact"] = Field(
            "k3",
            description="estimated from log-probs by k1, k2 or k3; exact: that of the Gaussians, "
            "of a policy that states mean and std",
        )
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
        steps: Literal["rewards", "returns"] = Field(
            "rewards",
            description="what of step rewards is compared in a group: each by itself "
            "(DeepSeekMath), or all that a completion earns from a step on",
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
        advantage_clip: float | None = Field(
            None, gt=0, description="advantages are cut at this size, as is usual for images"
        )
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

        @model_validator(mode="after")
        def _cap_above_the_clip_range(self) -> Self:
            if self.ratio_cap is None:
                return self
            most = 1 + (self.clip_low if self.clip_high is None else self.clip_high)
            if self.ratio_cap <= most:
                raise ValueError(
                    f"ratio_cap must be more than 1 + clip_high = {most:g}, found "
                    f"{self.ratio_cap:g}: below that it would clip positive advantages, too"
                )
            return self

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        self.length = self.config.length
        self.beta = self.config.beta
        self.gaussian = self.config.kl not in get_args(objective.Estimator)
        self.reference = frozenset({"mean" if self.gaussian else "log_probs"} if self.beta else ())
        self.moves_reference = self.config.reference_every is not None
        self.refills = self.config.refill
        self.corrects = self.config.importance != "none"
        self.couples_decisions = self.couples_decisions or self.config.importance == "sequence"
        self.needs = frozenset({"log_probs", "entropy"} if self.config.entropy else {"log_probs"})
        if self.beta and self.gaussian:
            self.needs |= {"mean", "std"}

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
        estimated = self.estimate(scores, rollouts, answers)
        if config.advantage_clip is not None:
            estimated = estimated.clamp(-config.advantage_clip, config.advantage_clip)
        mask = rollouts.mask
        if config.mask_truncated:
            mask = mask & ~rollouts.truncated.unsqueeze(1)
        return {
            "advantages": estimated.to(torch.float32),
            "weights": objective.weights(mask, normalize=config.normalize, length=self.length),
        }

    def estimate(
        self, scores: "Scores", rollouts: Rollouts, answers: Mapping[str, Tensor]
    ) -> Tensor:
        """[B], or [B, T] with process rewards: the advantages; variants override this."""
        return self._compared(scores, rollouts)

    def dead(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B] bool: what `relative` and steps say is 0 in all of the rollout's group."""
        compared = objective.per_decision(self._compared(scores, rollouts))
        return advantages.groups_without((compared != 0).any(dim=1), rollouts.groups)

    def _compared(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B], or [B, T]: the advantages of completions, and of their steps where there are any."""
        relative = self.relative(scores, rollouts)
        if scores.steps is None:
            return relative
        return relative.unsqueeze(1) + self._process(scores.steps, rollouts)

    def relative(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B]: the advantages of whole completions; variants override this."""
        config = self.config
        return advantages.group_relative(
            scores.outcome, rollouts.groups, scale=config.scale, epsilon=config.epsilon
        )

    def _process(self, steps: Tensor, rollouts: Rollouts) -> Tensor:
        """[B, T]: the advantages that steps give the decisions before them."""
        config = self.config
        by = {"rewards": advantages.process_supervision, "returns": advantages.process_returns}
        relative = by[config.steps](
            steps, rollouts.groups, scale=config.scale, epsilon=config.epsilon
        )
        missing = rollouts.mask.shape[1] - relative.shape[1]
        return torch.nn.functional.pad(relative, (0, missing))

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """Rollouts with weight, and an advantage unless KL or entropy give a gradient anyway."""
        weighted = (targets["weights"] != 0).any(dim=1)
        if self.beta or self.config.entropy:
            return weighted
        return weighted & (objective.per_decision(targets["advantages"]) != 0).any(dim=1)

    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: weights x (importance x surrogate + beta KL - entropy bonus)."""
        loss, importance = self.surrogate(current, batch), self.importance(batch)
        if importance is not None:
            loss = loss * importance
        if self.beta:
            loss = loss + self.beta * self.kl(current, batch)
        if self.config.entropy:
            assert current.entropy is not None
            loss = loss - self.config.entropy * current.entropy
        # where, not a product alone: padding may hold anything, and 0 x inf is NaN.
        return torch.where(batch["mask"], loss * batch["weights"], 0.0)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """What the surrogate damped, and importance weights, KL and entropy where there are any."""
        measured, importance = dict(self.damping(current, batch)), self.importance(batch)
        if importance is not None:
            measured["importance"] = importance
        if self.reference:
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

    def importance(self, batch: Batch) -> Tensor | None:
        """[b, t]: what each decision counts that another sampler, or older weights, took.

        None where the policy itself has just taken all; variants whose surrogate has it in itself
        override this.
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

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the clipped objective of each decision, unweighted; variants override this."""
        return objective.clipped(
            self.log_ratio(current, batch),
            batch["advantages"],
            low=self.config.clip_low,
            high=self.clip_high,
            cap=self.config.ratio_cap,
        )

    def damping(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t] each, to be measured: what `surrogate` does to gradients away from ratio 1.

        Variants override both. Here, the decisions whose gradient is cut.
        """
        cut = objective.is_clipped(
            self.log_ratio(current, batch),
            batch["advantages"],
            low=self.config.clip_low,
            high=self.clip_high,
            cap=self.config.ratio_cap,
        )
        return {"clip_fraction": cut.to(torch.float32)}

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the divergence from the reference of each decision; variants override this."""
        if self.gaussian:
            mean, std = current.extra["mean"], current.extra["std"]
            return objective.gaussian_kl(mean, batch["reference_mean"], std)
        assert current.log_probs is not None
        # Masked before the exponential, as in token_log_ratio: afterwards its gradient is NaN.
        padding = ~batch["mask"]
        return objective.kl(
            current.log_probs.masked_fill(padding, 0.0),
            batch["reference_log_probs"].masked_fill(padding, 0.0),
            estimator=self.config.kl,  # type: ignore[arg-type]  # "exact" has returned above
        )
