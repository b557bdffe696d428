"""Advantages and the critic's loss from values: pure functions of [B, T] per-decision tensors."""

import torch
from torch import Tensor

from groupwise.advantages import Scale


def at_the_end(rewards: Tensor, mask: Tensor) -> Tensor:
    """[B] rewards of whole rollouts as [B, T]: at the rollout's last decision, 0 elsewhere."""
    places = torch.arange(mask.shape[1], device=mask.device)
    last = (places * mask).amax(dim=1, keepdim=True) if mask.shape[1] else places
    return torch.where((places == last) & mask, rewards.unsqueeze(1), 0.0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, decay: float) -> Tensor:
    """Generalized advantage estimation, arXiv:1506.02438, eq. 16.

        delta_t = r_t + gamma V(s_t+1) - V(s_t);   A_t = delta_t + gamma decay A_t+1

    The state after the last decision has value 0. Places outside the mask (such as a tool's tokens)
    are skipped: the next state of a decision is that of the next decision.

    rewards, values: [B, T] of each decision, and of the state before it; mask: [B, T] bool.
    decay: lambda; with 1, A_t is the sum of future rewards minus V(s_t); with 0 it is delta_t.
    Returns [B, T], 0 outside the mask.
    """
    advantages = torch.zeros_like(values)
    after = carried = values.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * after - values[:, t]
        carried = torch.where(here, delta + gamma * decay * carried, carried)
        after = torch.where(here, values[:, t], after)
        advantages[:, t] = torch.where(here, carried, 0.0)
    return advantages


def whitened(
    advantages: Tensor, mask: Tensor, groups: Tensor, *, scale: Scale, epsilon: float = 1e-8
) -> Tensor:
    """(A - mean) / (std + epsilon) over the batch's or the group's decisions; A for scale "none".

    advantages, mask: [B, T]; groups: [B]. Returns [B, T], 0 outside the mask.
    """
    if scale == "none":
        return advantages
    if scale == "batch":
        groups = torch.zeros_like(groups)
    result = torch.zeros_like(advantages)
    for group in groups.unique():
        chosen = mask & (groups == group).unsqueeze(1)
        values = advantages[chosen]
        if len(values) > 1:
            result[chosen] = (values - values.mean()) / (values.std() + epsilon)
    return result


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None
) -> Tensor:
    """[B, T]: max((V - R)^2, (V_clip - R)^2) / 2, with V_clip = V_old + clamp(V - V_old, +-clip).

    The form of OpenAI's Baselines: a value outside [V_old - clip, V_old + clip] has a gradient only
    if it moves back. clip: None for (V - R)^2 / 2.
    """
    error = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return error / 2
