"""Reference and ReferenceKL: keep the policy near its initial weights, or earlier ones."""

from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts.divergence import Divergence
from groupwise.kit.errors import UserError
from groupwise.policy import Policy
from groupwise.rollouts import LogProbs
from groupwise.weights import REFERENCE, KeptWeights


class Reference(Divergence):
    """The weights before training, or those of an earlier step, and the KL of log-probs to them."""

    class Config(Divergence.Config):
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

        @model_validator(mode="after")
        def _has_reference_to_move(self) -> Self:
            if self.reference_every is not None and not self.beta:
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

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.reference = frozenset({"log_probs"} if self.config.beta else ())
        self.moves_reference = self.config.reference_every is not None

    def prepare(self, policy: Policy, weights: KeptWeights) -> None:
        """Raise UserError if the reference cannot be mixed with the policy."""
        if policy.factored and self.config.reference_mix != 1:
            raise UserError(
                f"algorithm.reference_mix: {self.config.reference_mix:g} with LoRA: adapters are "
                f"products of two factors, and the mean of the factors is not the mean of the "
                f"products; set reference_mix: 1 (the reference becomes the policy), or train the "
                f"full model (no policy.lora)"
            )

    def end_step(self, weights: KeptWeights, step: int) -> Mapping[str, float]:
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
        moved = mix * weights.distance(REFERENCE)
        if mix == 1:
            weights.keep(REFERENCE)
        else:
            weights.blend(REFERENCE, 1 - mix)
        return {"reference/age": 0, "reference/moved": moved}

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: log_prob - reference of each decision, the estimator k1."""
        return self.estimated_kl(current, batch, "k1")

    @staticmethod
    def estimated_kl(current: LogProbs, batch: Batch, estimator: objective.Estimator) -> Tensor:
        """[b, t]: `objective.kl` of log-probs."""
        assert current.log_probs is not None
        # Masked before the exponential, as in token_log_ratio: after it the gradient may be NaN.
        padding = ~batch["mask"]
        return objective.kl(
            current.log_probs.masked_fill(padding, 0.0),
            batch["reference_log_probs"].masked_fill(padding, 0.0),
            estimator=estimator,
        )


class ReferenceKL(Reference):
    """Adds beta times the KL to the reference to the loss.

    gaussian: whether it is exact, for policies of Gaussians.
    """

    class Config(Reference.Config):
        kl: objective.Estimator | Literal["exact"] = Field(
            "k3",
            description="how the KL is computed: estimated from log-probs by k1, k2 or k3; exact: "
            "in closed form, for policies of Gaussians that give mean and std",
        )

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.gaussian = self.config.kl not in get_args(objective.Estimator)
        if self.config.beta and self.gaussian:
            self.reference = frozenset({"mean"})
            self.needs = frozenset({"mean", "std"})

    @property
    def weight(self) -> float:  # type: ignore[override]  # of other parts it is constant
        return self.beta

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the divergence from the reference of each decision."""
        if self.gaussian:
            mean, std = current.extra["mean"], current.extra["std"]
            return objective.gaussian_kl(mean, batch["reference_mean"], std)
        # "exact" has returned above.
        return self.estimated_kl(current, batch, self.config.kl)  # type: ignore[arg-type]
