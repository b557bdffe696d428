"""The passes that give a completion's hidden states: with the group's prompt shared, or plainly."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise_llm import sampling


def shared(
    policy: Any, prompts: Sequence[Tensor], groups: Tensor, ids: Tensor, mask: Tensor
) -> Tensor:
    """Hidden states [b, t, h] from which each completion token is predicted.

    Each group's prompt runs once; its keys and values, gradients included, are repeated for
    the group.
    """
    _, which = groups.cpu().unique(return_inverse=True)
    first = {int(group): row for row, group in reversed(list(enumerate(which.tolist())))}
    heads = [prompts[first[group]] for group in range(len(first))]
    which = which.to(ids.device)
    prompt_ids, attention, positions = sampling.left_padded(heads, ids.device)
    cache = policy.new_cache()
    last = policy.hidden(prompt_ids, attention, positions, cache, keep=1)[which]
    if ids.shape[1] == 1:
        return last
    cache.batch_select_indices(which)
    attention = torch.cat([attention[which], mask[:, :-1].to(attention.dtype)], dim=1)
    start = positions[which, -1:] + 1
    steps = torch.arange(ids.shape[1] - 1, device=ids.device)
    rest = policy.hidden(ids[:, :-1], attention, start + steps, cache)
    return torch.cat([last, rest], dim=1)


def plain(policy: Any, prompts: Sequence[Tensor], ids: Tensor, mask: Tensor) -> Tensor:
    """The same by one pass over prompt and completion, for each rollout by itself."""
    prompt_ids, attention, positions = sampling.left_padded(prompts, ids.device)
    steps = torch.arange(1, ids.shape[1], device=ids.device)
    hidden: Tensor = policy.hidden(
        torch.cat([prompt_ids, ids[:, :-1]], dim=1),
        torch.cat([attention, mask[:, :-1].to(attention.dtype)], dim=1),
        torch.cat([positions, positions[:, -1:] + steps], dim=1),
        None,
        keep=ids.shape[1],
    )
    return hidden
