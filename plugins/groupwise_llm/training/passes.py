"""Passes that compute completions' hidden states: equal prompts computed once, or row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache

from groupwise_llm.model.causal import CausalModel, Hidden, Run
from groupwise_llm.model.copies import Numerics


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Prompts, their completions, and the k tokens whose log-probs are computed.

    prompts: n tensors of token ids; ids: [n, t] completions, padded on the right.
    attention: [n, t] bool, True for tokens, False for padding.
    rows, steps: [k] each; decision i is token ids[rows[i], steps[i]], given all tokens before it.
    """

    prompts: Sequence[Tensor]
    ids: Tensor
    attention: Tensor
    rows: Tensor
    steps: Tensor

    @staticmethod
    def of(
        prompts: Sequence[Tensor],
        ids: Tensor,
        attention: Tensor,
        decisions: tuple[Tensor, ...],
    ) -> "Sequences":
        """attention: [n, t] bool, True for tokens; gaps between them are closed.
        decisions: rows and columns [k] of the tokens whose log-probs are computed."""
        steps, width = attention.cumsum(dim=1) - 1, ids.shape[1]
        closed = ids.new_zeros(len(ids), width + 1)  # padding goes to the last column, cut off
        closed.scatter_(1, steps.where(attention, width), ids)
        return Sequences(
            prompts=prompts,
            ids=closed[:, :width],
            attention=torch.arange(width, device=ids.device) <= steps[:, -1:],
            rows=decisions[0],
            steps=steps[decisions],
        )


def likelihood(
    model: CausalModel,
    numerics: Numerics,
    sequences: Sequences,
    *,
    share: bool,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [k] of the decisions.

    share: whether a prompt that several rows have is computed once, or every row whole.
    """
    tokens = sequences.ids[sequences.rows, sequences.steps]
    return model(run_over(model, sequences, share), numerics, tokens, temperature=temperature)


def run_over(model: CausalModel, sequences: Sequences, share: bool) -> Run:
    """A function that runs the passes and returns the hidden states [k, h] before the decisions."""
    if not share:
        return partial(plain, sequences=sequences)
    return partial(shared, sequences=sequences, cache=model.new_prompt_cache())


def distinct(prompts: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """The different prompts, in order of first appearance, and for each row the number of its own.

    Rows are compared by their tokens, not by their group: a sampler may give the rollouts of a
    group different contexts. Rows that have the same tensor are read once.
    """
    tensors = {id(prompt): prompt for prompt in prompts}
    contents = {key: tuple(prompt.tolist()) for key, prompt in tensors.items()}
    numbers: dict[tuple[int, ...], int] = {}
    which = [numbers.setdefault(contents[id(prompt)], len(numbers)) for prompt in prompts]
    return [torch.tensor(ids, dtype=torch.int64) for ids in numbers], which


def left_padded(prompts: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, attention mask, positions) of P prompts, each [P, L], padded on the left with 0."""
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


def shared(hidden: Hidden, sequences: Sequences, *, cache: DynamicCache) -> Tensor:
    """Hidden states [k, h] from which the k decisions are predicted, prompts shared.

    Each different prompt is computed once; its keys and values are repeated for the rows that have
    it, and carry gradients. cache: empty.
    """
    ids = sequences.ids
    heads, rows = distinct(sequences.prompts)
    which = torch.tensor(rows).to(ids.device)
    prompt_ids, attention, positions = left_padded(heads, ids.device)
    states = hidden(prompt_ids, attention=attention, positions=positions, cache=cache, keep=1)
    states = states[which]
    if ids.shape[1] > 1:
        cache.reorder_cache(which)
        tokens = sequences.attention[:, :-1].to(attention.dtype)
        attention = torch.cat([attention[which], tokens], dim=1)
        steps = torch.arange(1, ids.shape[1], device=ids.device)
        positions = positions[which, -1:] + steps
        rest = hidden(ids[:, :-1], attention=attention, positions=positions, cache=cache)
        states = torch.cat([states, rest], dim=1)
    return states[sequences.rows, sequences.steps]


def plain(hidden: Hidden, sequences: Sequences) -> Tensor:
    """The same by one pass over prompt and completion of each rollout.

    Rows are padded on the right, and no token of a causal model attends to what follows it. So no
    attention mask is needed, and recurrent layers that ignore masks are right, too.
    """
    prompts, ids = sequences.prompts, sequences.ids
    whole, starts = right_padded(prompts, ids.device, room=ids.shape[1])
    whole.scatter_(1, starts.unsqueeze(1) + torch.arange(ids.shape[1], device=ids.device), ids)
    width = max(1, int((starts + sequences.attention.sum(dim=1)).max()) - 1)
    shortest = min(len(prompt) for prompt in prompts)
    states = hidden(whole[:, :width], keep=width - shortest + 1)
    rows = sequences.rows
    return states[rows, starts[rows] - shortest + sequences.steps]
