"""Prefill: the pass over contexts with which a batch begins."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from groupwise_llm.decoding.cache import joined, with_room
from groupwise_llm.decoding.decoder import Decoder
from groupwise_llm.decoding.prefixes import Prefix
from groupwise_llm.decoding.stepping import Cached, Recomputed
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.training.passes import left_padded

Started = tuple[Tensor, Cached]
"""[n, v] logits of each row's next token; and the rows."""


def begin(
    decoder: Decoder,
    contexts: Sequence[Tensor],
    copies: Sequence[int],
    prefixes: Sequence[Prefix | None],
) -> tuple[Tensor, Cached | Recomputed]:
    """[n, v] logits of the first token of each row, and the rows; context i has copies[i] of them.

    prefixes: of each context what is cached of it, None for one that is computed whole.
    """
    way, device = decoder.way, decoder.model.device
    if not way.cached:
        rows = Recomputed(decoder.model, decoder.numerics, _repeated(contexts, copies))
        return rows.start(), rows
    if not way.shared:
        contexts, prefixes = _repeated(contexts, copies), _repeated(prefixes, copies)
    logits, cached = (_resumed if any(prefixes) else _whole)(decoder, contexts, prefixes)
    if way.shared and max(copies) > 1:
        each = torch.arange(len(contexts), device=device)
        order = each.repeat_interleave(torch.tensor(copies, device=device))
        cached.keep(order)
        logits = logits[order]
    return logits, cached


def _whole(decoder: Decoder, contexts: Sequence[Tensor], _: Any = None) -> Started:
    """By one pass over whole contexts."""
    ids, attention, counts = left_padded(contexts, decoder.model.device)
    # Without padding no mask is needed, and attention without a mask is faster.
    even = len({len(context) for context in contexts}) == 1
    mask = None if even or not decoder.way.padded else attention
    return _passed(decoder, with_room(decoder.model.new_cache()), ids, mask, counts)


def _resumed(
    decoder: Decoder, contexts: Sequence[Tensor], prefixes: Sequence[Prefix | None]
) -> Started:
    """By one pass over what follows cached prefixes, and one over the contexts without any, which
    then share a cache."""
    known = [(row, prefix) for row, prefix in enumerate(prefixes) if prefix is not None]
    parts: dict[int, int] = {}
    known.sort(key=lambda pair: parts.setdefault(id(pair[1].part), len(parts)))
    new = [row for row, prefix in enumerate(prefixes) if prefix is None]
    logits, rows = _continued(
        decoder, [contexts[row] for row, _ in known], [prefix for _, prefix in known]
    )
    if new:
        more, fresh = _whole(decoder, [contexts[row] for row in new])
        logits = torch.cat([logits, more])
        nothing = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        rows = merged(decoder.model, nothing, rows, fresh)
    order = [*(row for row, _ in known), *new]
    if order != sorted(order):
        back = torch.tensor(order, device=logits.device).argsort()
        rows.keep(back)
        logits = logits[back]
    return logits, rows


def _continued(decoder: Decoder, contexts: Sequence[Tensor], prefixes: Sequence[Prefix]) -> Started:
    """By one pass over what follows these prefixes, sorted by their part."""
    device = decoder.model.device
    sources = []
    for _, group in groupby(prefixes, key=lambda prefix: id(prefix.part)):
        of_part = [*group]
        part, rows = (
            of_part[0].part,
            torch.tensor([prefix.row for prefix in of_part], device=device),
        )
        sources.append((part.cache, rows, part.valid[rows]))
    cache, cached = joined(sources, decoder.model.new_cache())
    pairs = [*zip(contexts, (prefix.length for prefix in prefixes), strict=True)]
    ids, attention, counts = left_padded([context[length:] for context, length in pairs], device)
    before = decoder.model.extents([context[:length] for context, length in pairs])
    counts += torch.tensor(before, device=device).unsqueeze(1)
    return _passed(decoder, cache, ids, torch.cat([cached, attention], dim=1), counts)


def merged(model: CausalModel, lengths: Tensor, *both: Cached) -> Cached:
    """Rows with one cache. lengths: [n] tokens drawn for each, 0 before the first."""
    sources = [
        (each.cache, torch.arange(len(each.positions), device=each.positions.device), each.valid)
        for each in both
    ]
    cache, attention = joined(sources, model.new_cache())
    return Cached(
        model,
        both[0].numerics,
        cache,
        attention=attention,
        positions=torch.cat([each.positions for each in both]),
        # The last token that was drawn is not in the cache.
        width=attention.shape[1] - (lengths - 1).clamp(min=0),
    )


def _passed(
    decoder: Decoder, cache: Any, ids: Tensor, attention: Tensor | None, counts: Tensor
) -> Started:
    """By this pass. attention: [n, s] of the cache and the ids, None without padding. counts: see
    `CausalModel.positions`."""
    model = decoder.model
    context = {"attention": attention, "positions": model.positions(ids, counts), "cache": cache}
    logits = model(lambda hidden: hidden(ids, **context, keep=1)[:, -1], decoder.numerics)
    rows = Cached(
        model,
        decoder.numerics,
        cache,
        attention=attention,
        positions=model.next_positions(ids, counts),
        width=torch.full_like(
            counts[:, -1], ids.shape[1] if attention is None else attention.shape[1]
        ),
    )
    return logits, rows


def _repeated(values: Sequence[Any], copies: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, copies, strict=True) for _ in range(count)]
