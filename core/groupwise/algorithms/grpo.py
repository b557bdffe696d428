"""GRPO: the group is the baseline.

When to use it: try it first, with any reward and any policy that has log-probs; each variant
changes one thing. It assumes that completions of one prompt are comparable, so that their mean
reward is a fair baseline, and that rewards differ within groups: equal rewards teach nothing.
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
    from groupwise.weights import KeptWeights


class GRPO(Algorithm):
    """GRPO, arXiv:2402.03300: no critic, the group is the baseline; the one to begin with.

        A = (r - mean of the group) / (std of the group + epsilon)
        loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)

    plus beta times a KL to the reference, minus an entropy bonus; DeepSeekMath, eq. 3. A is 0 in
    groups whose std is below `least_std`: their rewards differ by noise. rho is
    exp(log_prob - log_prob before the step's first update). Defaults are TRL's, with two
    exceptions: TRL's `normalize` is DAPO's `token`, and TRL multiplies the KL by the ratio.
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
            description="two-sided or dual clip: upper limit of ratios where the advantage is "
            "negative; must be above 1 + clip_high",
        )
        beta: float = Field(0.0, ge=0, description="weight of the KL to the reference in the loss")
        kl: objective.Estimator | Literal["exact"] = Field(
            "k3",
            description="how the KL is computed: estimated from log-probs by k1, k2 or k3; exact: "
            "in closed form, for policies of Gaussians that give mean and std",
        )
        reference_every: int | None = Field(
            None, ge=1, description="move the reference every so many steps; it is fixed if unset"
        )
        reference_mix: float = Field(
            1.0,
            gt=0,
            le=1,
            description="a move is reference <- mix x policy + (1 - mix) x reference; 1 copies the "
            "policy",
        )
        entropy: float = Field(0.0, description="weight of an entropy bonus")
        scale: advantages.Scale = Field(
            "group",
            description="divide advantages by the std of the group, of the batch, or by none",
        )
        steps: Literal["rewards", "returns"] = Field(
            "rewards",
            description="with step rewards, compare in a group: each step's reward "
            "(DeepSeekMath), or the sum of rewards from a step on",
        )
        normalize: objective.Normalize = Field(
            "sequence",
            description="how losses are averaged: over each completion, then over completions "
            "(sequence); over all decisions (token); or divided by a constant length (constant)",
        )
        length: int | None = Field(
            None,
            ge=1,
            description="divisor of normalize: constant; the longest completion allowed if unset",
        )
        epsilon: float = Field(1e-4, gt=0, description="added to the std")
        least_std: float = Field(
            1e-3,
            ge=0,
            description="a group whose rewards have a smaller std teaches nothing, as if they were "
            "equal: set it above the noise of a reward model, in units of the total reward",
        )
        advantage_clip: float | None = Field(
            None, gt=0, description="clip advantages to [-this, this], as usual for images"
        )
        refill: bool = Field(
            False,
            description="dynamic sampling: replace groups of equal reward, or of a std below "
            "least_std, by groups of other prompts",
        )
        mask_truncated: bool = Field(False, description="learn nothing from truncated completions")
        importance: objective.Level | Literal["none"] = Field(
            "token",
            description="importance weights policy / sampler for rollouts of another sampler or "
            "of older weights: of each decision (token), or of the whole completion (sequence)",
        )
        importance_mode: objective.Mode = Field(
            "truncate", description="importance weights above the cap are set to it, or to 0 (mask)"
        )
        importance_cap: float = Field(2.0, gt=0, description="cap of importance weights")

        @model_validator(mode="after")
        def _has_reference_to_move(self) -> Self:
            if self.reference_every is not None and self.beta == 0:
                raise ValueError(
                    "reference_every moves the reference, but with beta: 0 there is none; set beta "
                    "above 0, or leave reference_every out"
                )
            if self.reference_every is None and "reference_mix" in self.model_fields_set:
                raise ValueError(
                    "reference_mix is how far the reference moves, but without reference_every it "
                    "never moves; set reference_every, or leave reference_mix out"
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

    def prepare(self, policy: "Policy", weights: "KeptWeights") -> None:
        """Set `length`, the divisor of `normalize: constant`: the longest completion allowed.

        Raises UserError if the reference cannot be mixed with the policy.
        """
        if policy.factored and self.config.reference_mix != 1:
            raise UserError(
                f"algorithm.reference_mix: {self.config.reference_mix:g} with LoRA: adapters are "
                f"products of two factors, and the mean of the factors is not the mean of the "
                f"products; set reference_mix: 1 (the reference becomes the policy), or train the "
                f"full model (no policy.lora)"
            )
        self.length = self.config.length or policy.max_decisions
        if self.config.normalize == "constant" and self.length is None:
            raise UserError(
                "algorithm.length: normalize: constant divides by the longest completion, and this "
                "policy has no limit; set algorithm.length"
            )

    def end_step(self, weights: "KeptWeights", step: int) -> Mapping[str, float]:
        """The reference becomes the policy (DeepSeekMath, arXiv:2402.03300, algorithm 1) or mixes
        with it (TR-DPO, arXiv:2404.09656), every `reference_every` steps.

        Metrics: `reference/age`, steps since the last move; `reference/moved`, its root mean square
        change in this step.
        """
        every, mix = self.config.reference_every, self.config.reference_mix
        if every is None:
            return {}
        if step % every:
            return {"reference/age": step % every}
        moved = mix * weights.distance("reference")
        if mix == 1:
            weights.keep("reference")
        else:
            weights.blend("reference", 1 - mix)
        return {"reference/age": 0, "reference/moved": moved}

    def targets(
        self, scores: "Scores", rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """`advantages` [B], or [B, T] with process rewards; `weights` [B, T]; both float32."""
        config = self.config
        estimated = self.estimate(scores, rollouts, inputs)
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
        self, scores: "Scores", rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """[B], or [B, T] with process rewards: the advantages; variants override this."""
        return self._compared(scores, rollouts)

    def no_signal(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B] bool: all advantages in the rollout's group are 0, as below `least_std`."""
        compared = objective.per_decision(self._compared(scores, rollouts))
        return advantages.groups_without((compared != 0).any(dim=1), rollouts.groups)

    def _compared(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B], or [B, T] with process rewards: advantages of completions plus those of steps."""
        relative = self.relative(scores, rollouts)
        if scores.steps is None:
            return relative
        return relative.unsqueeze(1) + self._process(scores.steps, rollouts)

    def relative(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B]: the advantages of whole completions; variants override this."""
        config = self.config
        return advantages.group_relative(
            scores.outcome,
            rollouts.groups,
            scale=config.scale,
            epsilon=config.epsilon,
            least_std=config.least_std,
        )

    def _process(self, steps: Tensor, rollouts: Rollouts) -> Tensor:
        """[B, T]: the advantages of decisions by the rewards of steps that end at them or later."""
        config = self.config
        by = {"rewards": advantages.process_supervision, "returns": advantages.process_returns}
        relative = by[config.steps](
            steps,
            rollouts.groups,
            scale=config.scale,
            epsilon=config.epsilon,
            least_std=config.least_std,
        )
        missing = rollouts.mask.shape[1] - relative.shape[1]
        return torch.nn.functional.pad(relative, (0, missing))

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """[B] bool: weight != 0, and advantage != 0 unless KL or entropy have a gradient anyway."""
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
        # torch.where, not only a product: padding may hold anything, and 0 x inf is NaN.
        return torch.where(batch["mask"], loss * batch["weights"], 0.0)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """`clip_metrics`; importance weights and KL if they are in the loss; `trained_entropy` if
        the policy provides the entropy."""
        measured, importance = dict(self.clip_metrics(current, batch)), self.importance(batch)
        if importance is not None:
            measured["importance"] = importance
        if self.reference:
            measured["kl"] = self.kl(current, batch)
        if current.entropy is not None:
            measured["trained_entropy"] = current.entropy
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
        """[b, t]: importance weights of decisions that another sampler, or older weights, drew.

        None if the current policy drew them. Variants whose surrogate contains the importance
        weight override this.
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

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t] each, to log: how much `surrogate` reduces gradients away from ratio 1.

        Variants that override `surrogate` override this, too. Here: 1 at clipped decisions.
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
        # Masked before the exponential, as in token_log_ratio: after it the gradient may be NaN.
        padding = ~batch["mask"]
        return objective.kl(
            current.log_probs.masked_fill(padding, 0.0),
            batch["reference_log_probs"].masked_fill(padding, 0.0),
            estimator=self.config.kl,  # type: ignore[arg-type]  # "exact" has returned above
        )
