"""REINFORCE++: the batch is the baseline.

When to use it: small groups, and rewards on one scale for all prompts, as a reward model gives. A
group of equal rewards still teaches, by comparison with the rest of the batch. It assumes that
prompts are about equally hard; otherwise the completions of an easy prompt look good whatever they
say: then use `reinforce_pp_baseline`.

Where implementations differ: the paper subtracts the KL to the reference from the reward, decision
by decision (k1), and so do we; OpenRLHF and verl can do either. All normalise over decisions, so
long completions count more in the mean; OpenRLHF uses the biased std, verl and we the unbiased.
"Batch" means an update here: with several `updates_per_rollout`, each is normalised by itself.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from groupwise import advantages, objective
from groupwise.algorithms.parts import (
    Advantages,
    Beta,
    Clipped,
    Composed,
    Divisor,
    EntropyBonus,
    ImportanceWeights,
    Observations,
    Options,
    Reference,
    Teacher,
)
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


class ReinforcePP(
    Composed,
    advantage=Advantages,
    surrogate=Clipped,
    divisor=Divisor,
    importance=ImportanceWeights,
    observations=Observations,
    entropy=EntropyBonus,
    divergence=Reference,
    teacher=Teacher,
):
    """REINFORCE++, arXiv:2501.03262: the batch is the baseline, for rewards of one scale.

    R = r - beta (sum of log_prob - reference from the decision on)
    A = (R - mean of the batch) / (std of the batch + epsilon)
    loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    """

    class Config(Options):
        beta: Beta = Field(
            0.0,
            description="weight of the KL to the reference in the reward: a number, 0 for none; a "
            "schedule; or a target for the KL",
        )
        normalize: objective.Normalize = "token"
        epsilon: float = Field(1e-8, gt=0, description="added to the std")

    config: Config
    smallest_group = 1

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        if self.config.beta:
            self.target_inputs |= {"old_log_probs", "reference_log_probs"}

    @property
    def kl_weight(self) -> float:
        """The beta of this step."""
        divergence = self.parts["divergence"]
        assert isinstance(divergence, Reference)
        return divergence.beta

    def estimate(self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]) -> Tensor:
        mask, returns = rollouts.mask, self._returns(scores, rollouts)
        if self.config.beta:
            kl = objective.token_log_ratio(
                inputs["old_log_probs"], inputs["reference_log_probs"], mask
            )
            returns = returns - self.kl_weight * advantages.to_go(kl.to(returns.dtype))
        return whitened(returns, judged(scores, mask), epsilon=self.config.epsilon)

    def no_signal(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B] bool: all of the group equals the batch mean, or none of it has a reward."""
        compared = whitened(self._returns(scores, rollouts), judged(scores, rollouts.mask))
        return advantages.groups_without((compared != 0).any(dim=1), rollouts.groups)

    def _returns(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B, T]: the return of each decision, without the KL."""
        mask = rollouts.mask
        returns = scores.outcome.nan_to_num().unsqueeze(1).expand(mask.shape)
        if scores.steps is None:
            return returns
        missing = mask.shape[1] - scores.steps.shape[1]
        return returns + advantages.to_go(torch.nn.functional.pad(scores.steps, (0, missing)))


def judged(scores: Scores, mask: Tensor) -> Tensor:
    """[B, T] bool: the decisions of rollouts that have a reward, for the whole or for a step."""
    has_reward = ~scores.outcome.isnan()
    if scores.steps is not None:
        has_reward = has_reward | ~scores.steps.isnan().all(dim=1)
    return mask & has_reward.unsqueeze(1)


def whitened(values: Tensor, mask: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """(v - mean) / (std + epsilon) over all decisions of the batch; REINFORCE++, arXiv:2501.03262.

    values: [B, T]; mask: [B, T] bool, the decisions that count. The std is the unbiased one.
    Returns [B, T], 0 outside the mask, and 0 everywhere if all values are equal.
    """
    chosen = values[mask]
    if not len(chosen) or bool(chosen.min() == chosen.max()):
        return torch.zeros_like(values)
    std = (chosen - chosen.mean()).square().sum().div(len(chosen) - 1).sqrt()
    return ((values - chosen.mean()) / (std + epsilon)).masked_fill(~mask, 0.0)
