"""From rewards to advantages: pure functions, one per published estimator."""

from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from groupwise import moved

Scale = Literal["group", "batch", "none"]


def group_relative(
    rewards: Tensor,
    groups: Tensor,
    *,
    scale: Scale = "group",
    epsilon: float = 1e-4,
    least_std: float = 0.0,
) -> Tensor:
    """A = (r - mean of its group) / (std + epsilon); DeepSeekMath, arXiv:2402.03300, section 4.1.2.

    rewards: [B] float; NaN for a rollout to which no reward applies: it is left out of mean and
        std, and its advantage is 0.
    groups: [B] int64, equal within a group.
    scale: divide by the std of the "group" (GRPO), of the whole "batch" (as in REINFORCE++), or by
        "none" (Dr. GRPO, arXiv:2503.20783). The std is the unbiased one, as in TRL, and 0 for a
        single rollout.
    least_std: A is 0 in groups whose std is below this, with any `scale`: their rewards differ by
        noise, which the division would make as large as any other difference.
    Returns [B], in the rewards' dtype.
    """
    if rewards.ndim != 1 or rewards.shape != groups.shape:
        raise ValueError(
            f"group_relative: rewards and groups must be [B], received "
            f"{list(rewards.shape)} and {list(groups.shape)}"
        )
    valid = ~rewards.isnan()
    values = rewards.nan_to_num()
    # Equal rewards have advantage exactly 0: a rounding error of the mean, divided by epsilon,
    # would cost a backward pass.
    learnable = valid & ~zero_variance(rewards, groups)
    centred = torch.where(learnable, values - group_mean(rewards, groups), 0.0)
    stds = _group_std(centred, groups, valid)
    centred = centred.masked_fill(stds < least_std, 0.0)
    if scale == "none":
        return centred
    if scale == "group":
        return centred / (stds + epsilon)
    if scale == "batch":
        std = rewards[valid].std() if int(valid.sum()) > 1 else rewards.new_zeros(())
        return centred / (std + epsilon)
    raise ValueError(
        f'group_relative: scale must be "group", "batch" or "none", received {scale!r}'
    )


def to_go(values: Tensor) -> Tensor:
    """[B, T]: sum of the values from each decision on; NaN counts as 0."""
    return values.nan_to_num().flip(1).cumsum(1).flip(1)


def process_supervision(
    steps: Tensor,
    groups: Tensor,
    *,
    scale: Scale = "group",
    epsilon: float = 1e-4,
    least_std: float = 0.0,
) -> Tensor:
    """Process supervision, DeepSeekMath, arXiv:2402.03300, section 4.1.3.

    steps: [B, T] float, the reward of a step at the decision where the step ends, NaN elsewhere.
        All step rewards of a group are normalised together, as by `group_relative`.
    Returns [B, T]: for each decision, the sum of normalised rewards of the steps that end at it or
    later.
    """
    rows, ends = (~steps.isnan()).nonzero(as_tuple=True)
    relative = torch.zeros_like(steps)
    relative[rows, ends] = group_relative(
        steps[rows, ends], groups[rows], scale=scale, epsilon=epsilon, least_std=least_std
    )
    return to_go(relative)


def process_returns(
    steps: Tensor,
    groups: Tensor,
    *,
    scale: Scale = "group",
    epsilon: float = 1e-4,
    least_std: float = 0.0,
) -> Tensor:
    """Reward-to-go, with the group's mean reward-to-go from the same step on as the baseline.

        A = (R_ik - mean of R_jk over the group) / (std + epsilon),  R_ik = sum of r_il for l >= k

    where k is the number of steps that the completion has finished before the decision. This
    baseline does not depend on what follows, as it must not. In `process_supervision` it does: it
    is the mean reward of a step times the number of steps still to come. With a single step, at the
    end, both equal `group_relative`.

    steps, groups: as in `process_supervision`. After its last step a completion has R = 0; one
        without any step is left out of the mean, and its advantage is 0.
    scale: the std of all R - mean of the "group", over all k together, so that late steps, in which
        few completions differ, are not blown up; or of all R of the "batch".
    least_std: A is 0 in groups in which the former std is below this.
    Returns [B, T].
    """
    ended = ~steps.isnan()
    number = ended.cumsum(1) - ended.long()
    counts = ended.sum(1)
    rows, places = ended.nonzero(as_tuple=True)
    size, most = len(steps), int(counts.max()) if len(steps) else 0
    returns = steps.new_zeros(size, most).index_put((rows, number[rows, places]), steps[ended])
    returns = to_go(returns)
    _, index = groups.unique(return_inverse=True)
    longest = counts.new_zeros(size).scatter_reduce_(0, index, counts, "amax")[index]
    orders = torch.arange(most, device=steps.device)
    valid = (orders < longest.unsqueeze(1)) & (counts > 0).unsqueeze(1)
    returns = returns.masked_fill(~valid, torch.nan).flatten()
    same_step = (index.unsqueeze(1) * most + orders).flatten()
    relative = group_relative(returns, same_step, scale="none")
    stds = _group_std(relative, index.repeat_interleave(most), valid.flatten())
    relative = relative.masked_fill(stds < least_std, 0.0)
    if scale == "group":
        relative = relative / (stds + epsilon)
    elif scale == "batch":
        known = returns[valid.flatten()]
        relative = relative / ((known.std() if len(known) > 1 else 0.0) + epsilon)
    after_the_last = steps.new_zeros(size, 1)
    return torch.cat([relative.view(size, most), after_the_last], dim=1).gather(1, number)


def groups_without(rows: Tensor, groups: Tensor) -> Tensor:
    """[B] bool: True where no rollout of the group is in `rows` [B] bool; groups: [B]."""
    return ~torch.isin(groups, groups[rows])


def zero_variance_of_steps(steps: Tensor, groups: Tensor) -> Tensor:
    """[B] bool: all step rewards of the rollout's group are equal. steps: [B, T], NaN for none."""
    lowest = steps.nan_to_num(nan=torch.inf).amin(dim=1)
    highest = steps.nan_to_num(nan=-torch.inf).amax(dim=1)
    bounds = torch.stack([lowest, highest], dim=1).flatten()
    bounds = bounds.masked_fill(bounds.isinf(), torch.nan)  # a rollout without steps
    return zero_variance(bounds, groups.repeat_interleave(2))[::2]


def zero_variance(rewards: Tensor, groups: Tensor) -> Tensor:
    """[B] bool: all rewards of the rollout's group are equal (ignoring NaN): nothing to learn.

    Compared exactly, since a computed std of equal rewards may be above 0 by rounding.
    """
    _, index = groups.unique(return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    lowest = rewards.new_full((count,), torch.inf)
    highest = rewards.new_full((count,), -torch.inf)
    lowest.scatter_reduce_(0, index, rewards.nan_to_num(nan=torch.inf), "amin")
    highest.scatter_reduce_(0, index, rewards.nan_to_num(nan=-torch.inf), "amax")
    return (lowest >= highest)[index]


def group_sum(values: Tensor, groups: Tensor) -> Tensor:
    """[B]: the sum over each rollout's group; values: [B] without NaN; groups: [B]."""
    _, index = groups.unique(return_inverse=True)
    size = int(index.max()) + 1 if len(index) else 0
    return values.new_zeros(size).index_add_(0, index, values)[index]


def group_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """[B]: the mean of rewards in each rollout's group, without NaN; 0 where there is no reward."""
    count = group_sum((~rewards.isnan()).to(rewards.dtype), groups)
    return group_sum(rewards.nan_to_num(), groups) / count.clamp(min=1)


def group_std(rewards: Tensor, groups: Tensor) -> Tensor:
    """[B]: the unbiased std of rewards in each rollout's group; NaN for rollouts without reward."""
    valid = ~rewards.isnan()
    values = rewards.nan_to_num()
    centred = torch.where(valid, values - group_mean(rewards, groups), 0.0)
    return _group_std(centred, groups, valid).masked_fill(~valid, torch.nan)


def _group_std(centred: Tensor, groups: Tensor, valid: Tensor) -> Tensor:
    """[B]: the unbiased std in each rollout's group, from values already centred."""
    squares = group_sum(centred.square(), groups)
    return (squares / (group_sum(valid.to(centred.dtype), groups) - 1).clamp(min=1)).sqrt()


if not TYPE_CHECKING:  # to a type checker, former names are missing
    __getattr__ = partial(moved.formula, __name__)
