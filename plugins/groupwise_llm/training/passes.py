"""Passes that compute completions' hidden states: equal prompts computed once, or row by row.

`packed`: one row of all prompts and completions, without padding, mask or cache. `cached`: a pass
over the prompts, whose cache the completions go on from, for models whose attention is not plainly
causal. `plain`: every completion with its own prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from groupwise_llm.model.attention import Layout
from groupwise_llm.model.causal import CausalModel, Hidden, Run
from groupwise_llm.model.copies import Numerics

Pass = Literal["packed", "cached", "plain"]
SHARING: tuple[Pass, ...] = ("packed", "cached")
"""Those that compute equal prompts once, from the fastest to the safest."""


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
    by: Pass,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [k] of the decisions."""
    tokens = sequences.ids[sequences.rows, sequences.steps]
    return model(run_over(model, sequences, by), numerics, tokens, temperature=temperature)


def run_over(model: CausalModel, sequences: Sequences, by: Pass) -> Run:
    """A function that runs the passes and returns the hidden states [k, h] before the decisions."""
    if by == "packed":
        return partial(packed, sequences=sequences, model=model)
    if by == "cached":
        return partial(cached, sequences=sequences, model=model)
    return partial(plain, sequences=sequences, model=model)


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


def packed(hidden: Hidden, sequences: Sequences, *, model: CausalModel) -> Tensor:
    """Hidden states [k, h] from which the k decisions are predicted, by one pass over one row.

    The row has the different prompts and then, prompt by prompt, the completions without their last
    tokens; those of equal length stand together, since attention computes them together.
    """
    ids, device = sequences.ids, sequences.ids.device
    heads, which = distinct(sequences.prompts)
    lengths = (sequences.attention.sum(dim=1) - 1).clamp(min=0).tolist()
    groups: list[list[int]] = [[] for _ in heads]
    for row in sorted(range(len(which)), key=lengths.__getitem__, reverse=True):
        groups[which[row]].append(row)
    # Prompts whose completions are all of one token come last, as `Layout` has them.
    prompts = sorted(range(len(heads)), key=lambda prompt: not lengths[groups[prompt][0]])
    parts = [(heads[prompt], torch.arange(len(heads[prompt]))) for prompt in prompts]
    last, before, stop = [0] * len(which), [0] * len(which), 0
    for prompt in prompts:
        stop += len(heads[prompt])
        for row in groups[prompt]:
            last[row] = stop - 1
    for row in (row for prompt in prompts for row in groups[prompt]):
        steps = torch.arange(lengths[row])
        parts.append((row * ids.shape[1] + steps, len(heads[which[row]]) + steps))
        before[row], stop = stop - 1, stop + lengths[row]
    # One copy to the device, since the host waits for each.
    start = sum(map(len, heads))
    sources, positions = (torch.cat(column) for column in zip(*parts, strict=True))
    table = torch.cat([sources, positions, torch.tensor([*last, *before])]).to(device)
    tokens, places, positions, *ends = table.split([start, stop - start, stop, *[len(which)] * 2])
    row_of = torch.cat([tokens, ids.flatten()[places]]).unsqueeze(0)
    own = [[lengths[row] for row in groups[prompt]] for prompt in prompts]
    layout = Layout.of([len(heads[prompt]) for prompt in prompts], own, device)
    rows, steps = sequences.rows, sequences.steps
    keep = torch.where(steps == 0, ends[0][rows], ends[1][rows] + steps)
    placed = model.packed_positions(row_of, positions.unsqueeze(0), layout)
    with model.packed_attention.over(layout):
        states = hidden(row_of, attention=torch.ones_like(row_of), positions=placed, keep=keep)
    return states.squeeze(0)


def cached(hidden: Hidden, sequences: Sequences, *, model: CausalModel) -> Tensor:
    """The same by a pass over the prompts and one over the completions, both padded.

    The keys and values of each different prompt are repeated for the rows that have it, and carry
    gradients.
    """
    ids = sequences.ids
    heads, rows = distinct(sequences.prompts)
    which = torch.tensor(rows).to(ids.device)
    prompt_ids, attention, counts = left_padded(heads, ids.device)
    positions, cache = model.positions(prompt_ids, counts), model.new_prompt_cache()
    states = hidden(prompt_ids, attention=attention, positions=positions, cache=cache, keep=1)
    states = states[which]
    if ids.shape[1] > 1:
        cache.reorder_cache(which)
        tokens = sequences.attention[:, :-1].to(attention.dtype)
        attention = torch.cat([attention[which], tokens], dim=1)
        steps = torch.arange(ids.shape[1] - 1, device=ids.device)
        counts = model.next_positions(prompt_ids, counts)[which].unsqueeze(1) + steps
        positions = model.positions(ids[:, :-1], counts)
        rest = hidden(ids[:, :-1], attention=attention, positions=positions, cache=cache)
        states = torch.cat([states, rest], dim=1)
    return states[sequences.rows, sequences.steps]


def plain(hidden: Hidden, sequences: Sequences, *, model: CausalModel) -> Tensor:
    """The same by one pass over prompt and completion of each rollout.

    Rows are padded on the right, and no token of a causal model attends to what follows it. So no
    attention mask is needed, and recurrent layers that ignore masks are right, too.
    """
    prompts, ids = sequences.prompts, sequences.ids
    whole, starts = right_padded(prompts, ids.device, room=ids.shape[1])
    whole.scatter_(1, starts.unsqueeze(1) + torch.arange(ids.shape[1], device=ids.device), ids)
    width = max(1, int((starts + sequences.attention.sum(dim=1)).max()) - 1)
    shortest = min(len(prompt) for prompt in prompts)
    ids = whole[:, :width]
    states = hidden(ids, positions=model.positions(ids, None), keep=width - shortest + 1)
    rows = sequences.rows
    return states[rows, starts[rows] - shortest + sequences.steps]
