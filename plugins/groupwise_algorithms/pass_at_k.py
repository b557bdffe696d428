"""Pass@k: the best of k completions, in place of a single one.

When to use it: k completions of a prompt will be drawn and the best one taken (by tests, a verifier
or a reward model), or a run on hard prompts narrows down too early: in evaluations `accuracy` rises
and `pass_at_8` falls. A right answer is worth less the more others are right, so that easy prompts
teach little, and a try that is unlike the others loses little. Expect a lower accuracy of single
completions than with `grpo`; evaluate with `evaluation.samples` of at least k. With rewards of
other values than 0 and 1 it maximises the largest reward of k (max@k).

k must be less than `train.group_size` (`leave_one_out`: at most that); the nearer, the noisier.
With `k: 1` it is `rloo`.

Where implementations differ: both baselines leave the gradient of max@k unbiased, up to a factor k.
`leave_one_out` is one of arXiv:2505.15201, whose advantages are never negative; with k of the whole
group, as in arXiv:2503.19595, only the best completion has one: its reward minus the second best.
verl (`grpo_passk`) divides that by the group's std. `leave_two_out`, of arXiv:2606.06080, also
pushes bad completions down: advantages sum to 0 in each group.
"""

from math import comb
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from groupwise import advantages, objective
from groupwise.algorithms.parts import Clipped, GroupCentred, Options, Usual
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts

Baseline = Literal["leave_one_out", "leave_two_out"]


class PassAtK(Usual, advantage=GroupCentred, surrogate=Clipped):
    """Pass@k, arXiv:2505.15201, arXiv:2606.06080: train the best of k, for hard prompts or search.

        A = mean of max(S) over sets S of k that contain the completion - the same of sets without

    S are sets of k completions of the group, max(S) is their largest reward. `baseline:
    leave_one_out` subtracts the largest without the completion, from the same sets.
    """

    class Config(Usual.Config, GroupCentred.Config, Clipped.Config):
        k: int = Field(4, ge=1, description="how many completions the best is taken of")
        baseline: Baseline = Field(
            "leave_two_out",
            description="leave_one_out: the best of k without the completion's own; "
            "leave_two_out: that of k others, so that advantages sum to 0 in a group",
        )
        normalize: objective.Normalize = "constant"

        @model_validator(mode="after")
        def _others_to_compare_with(self) -> Self:
            if self.k == 1 and self.baseline == "leave_one_out":
                raise ValueError(
                    "baseline: leave_one_out compares with the best of k - 1 others, so k must be "
                    "at least 2, found 1; set baseline: leave_two_out"
                )
            return self

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.smallest_group = self.config.k + (self.config.baseline == "leave_two_out")

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        rewards, groups = scores.outcome, rollouts.groups
        relative = max_at_k(rewards, groups, k=self.config.k, baseline=self.config.baseline)
        stds = advantages.group_std(rewards, groups)
        return relative.masked_fill(stds < self.config.least_std, 0.0)


def max_at_k(
    rewards: Tensor, groups: Tensor, *, k: int, baseline: Baseline = "leave_two_out"
) -> Tensor:
    """[B]: advantages for the largest reward of k draws; see `PassAtK`.

    rewards: [B] float; NaN for a rollout to which no reward applies: it is in no set, and its
        advantage is 0. groups: [B]. In groups that are too small, k is as large as possible.
    """
    valid, result = ~rewards.isnan(), torch.zeros_like(rewards)
    for group in groups[valid].unique():
        rows = valid & (groups == group)
        result[rows] = _max_at_k(rewards[rows], k, baseline)
    return result


def _max_at_k(rewards: Tensor, k: int, baseline: Baseline) -> Tensor:
    """[n]: the advantages of one group.

    A maximum is the least reward plus the gaps between neighbours in the order of rewards that it
    is above. So an advantage is a sum over gaps: how much likelier the maximum is above the gap by
    the completion. Gaps of 0 contribute 0, so equal rewards have exactly equal advantages.
    """
    n = len(rewards)
    k = min(k, n if baseline == "leave_one_out" else n - 1)
    least = 2 if baseline == "leave_one_out" else 1
    if k < least:
        return torch.zeros_like(rewards)
    ordered, order = rewards.sort()
    gaps, counts = ordered.diff(), range(1, n)  # a gap is above so many of the n rewards
    if baseline == "leave_one_out":  # none of the k - 1 others is above the gap
        chances = [comb(below, k - 1) / comb(n - 1, k - 1) for below in counts]
        losses = [0.0 for _ in counts]
    else:  # none of the k others is; the losses of those below make the sum over the group 0
        chances = [comb(below, k) / comb(n - 1, k) for below in counts]
        losses = [c * (n - below) / below for c, below in zip(chances, counts, strict=True)]
    above = order.argsort().unsqueeze(1) >= torch.arange(1, n, device=order.device)  # [n, gaps]
    gain, loss = gaps * gaps.new_tensor(chances), gaps * gaps.new_tensor(losses)
    return torch.where(above, gain, -loss).sum(dim=1)
