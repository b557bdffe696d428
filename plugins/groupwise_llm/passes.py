"""The passes that give completions' hidden states: with the group's prompt shared, or plainly."""

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise_llm.body import Body


def left_padded(prompts: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, attention mask, positions), each [P, L], padded on the left with 0."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    return ids.to(device), mask.to(device), positions.to(device)


def right_padded(
    prompts: Sequence[Tensor], device: torch.device, *, room: int = 0
) -> tuple[Tensor, Tensor]:
    """(ids [P, L + room], lengths [P]), padded on the right with 0."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = torch.zeros(len(prompts), int(lengths.max()) + room, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    return ids.to(device), lengths.to(device)


def shared(
    body: Body, prompts: Sequence[Tensor], groups: Tensor, ids: Tensor, mask: Tensor
) -> Tensor:
    """Hidden states [k, h] from which each of the mask's k completion tokens is predicted.

    Each group's prompt runs once; its keys and values, gradients included, are repeated for
    the group.
    """
    _, which = groups.cpu().unique(return_inverse=True)
    first = {int(group): row for row, group in reversed(list(enumerate(which.tolist())))}
    heads = [prompts[first[group]] for group in range(len(first))]
    which = which.to(ids.device)
    prompt_ids, attention, positions = left_padded(heads, ids.device)
    cache = body.new_cache()
    hidden = body.hidden(prompt_ids, attention=attention, positions=positions, cache=cache, keep=1)[
        which
    ]
    if ids.shape[1] > 1:
        cache.reorder_cache(which)
        attention = torch.cat([attention[which], mask[:, :-1].to(attention.dtype)], dim=1)
        steps = torch.arange(1, ids.shape[1], device=ids.device)
        positions = positions[which, -1:] + steps
        rest = body.hidden(ids[:, :-1], attention=attention, positions=positions, cache=cache)
        hidden = torch.cat([hidden, rest], dim=1)
    return hidden[mask.nonzero(as_tuple=True)]


def plain(body: Body, prompts: Sequence[Tensor], ids: Tensor, mask: Tensor) -> Tensor:
    """The same by one pass over prompt and completion of each rollout.

    Rows are padded on the right, where no token of a causal model looks: so no attention mask is
    needed, and models whose recurrent layers know none are right, too.
    """
    sequences, starts = right_padded(prompts, ids.device, room=ids.shape[1])
    steps = torch.arange(ids.shape[1], device=ids.device)
    sequences.scatter_(1, starts.unsqueeze(1) + steps, ids)
    width = max(1, int((starts + mask.sum(dim=1)).max()) - 1)
    shortest = min(len(prompt) for prompt in prompts)
    keep = width - shortest + 1
    hidden = body.hidden(sequences[:, :width], keep=keep)
    rows, steps = mask.nonzero(as_tuple=True)
    return hidden[rows, starts[rows] - shortest + steps]
