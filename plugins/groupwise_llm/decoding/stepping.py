"""Stepping: the next token's logits for a batch of rows, with a KV cache or recomputed each
time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from groupwise_llm.decoding.cache import is_roomy, joined, with_room
from groupwise_llm.decoding.prefixes import Part, Prefix
from groupwise_llm.model.causal import CausalModel, Hidden
from groupwise_llm.model.copies import Numerics
from groupwise_llm.training.passes import left_padded, right_padded


@dataclass(frozen=True)
class Way:
    """A way to decode completions; `probes` finds the fastest one that is right for a model.

    shared: a prompt's cache is computed once and repeated for its group.
    padded: prompts of different lengths share a batch, padded on the left.
    cached: the model uses a KV cache. Without one every step computes the whole row, padded on the
        right, which is right for any causal model.
    """

    shared: bool = True
    padded: bool = True
    cached: bool = True

    def __str__(self) -> str:
        if not self.cached:
            return "without a cache"
        prompts = "prompts shared" if self.shared else "prompts not shared"
        return prompts if self.padded else f"{prompts}, only prompts of equal length together"


class Cached:
    """Rows with a KV cache; context i has copies[i] rows.

    prefixes: of each context what is cached of it, None for one that is computed whole.
    """

    def __init__(
        self,
        model: CausalModel,
        numerics: Numerics,
        contexts: Sequence[Tensor],
        copies: Sequence[int],
        way: Way,
        *,
        prefixes: Sequence[Prefix | None],
    ) -> None:
        self._model, self._numerics, self._way = model, numerics, way
        self._contexts, self._copies, self._prefixes = contexts, copies, prefixes
        self._steps = 0

    def start(self) -> Tensor:
        """[n, v] logits of each row's first token."""
        device = self._model.device
        contexts, prefixes = self._contexts, self._prefixes
        if not self._way.shared:
            contexts, prefixes = [repeated(own, self._copies) for own in (contexts, prefixes)]
        logits = self._resume(contexts, prefixes) if any(prefixes) else self._prefill(contexts)
        self._prefixes = ()  # so that their memory is freed
        if self._way.shared and max(self._copies) > 1:
            copies = torch.tensor(self._copies, device=device)
            rows = torch.arange(len(contexts), device=device).repeat_interleave(copies)
            self.keep(rows)
            logits = logits[rows]
        return logits

    def _prefill(self, contexts: Sequence[Tensor]) -> Tensor:
        """The logits after one pass over whole contexts."""
        ids, attention, positions = left_padded(contexts, self._model.device)
        self._cache = with_room(self._model.new_cache())
        # Without padding no mask is needed, and attention without a mask is faster.
        even = len({len(context) for context in contexts}) == 1
        self._attention = None if even or not self._way.padded else attention
        self._position = positions[:, -1]
        return self._pass(ids, positions)

    def _resume(self, contexts: Sequence[Tensor], prefixes: Sequence[Prefix | None]) -> Tensor:
        """The logits after one pass over what follows cached prefixes, and one over the contexts
        without any, which then share a cache."""
        known = [(row, own) for row, own in enumerate(prefixes) if own is not None]
        parts: dict[int, int] = {}
        known.sort(key=lambda pair: parts.setdefault(id(pair[1].part), len(parts)))
        new = [row for row, own in enumerate(prefixes) if own is None]
        logits = self._continue([contexts[row] for row, _ in known], [own for _, own in known])
        if new:
            fresh = Cached(self._model, self._numerics, (), (), self._way, prefixes=())
            logits = torch.cat([logits, fresh._prefill([contexts[row] for row in new])])
            both = [
                (one._cache, torch.arange(len(one._position), device=logits.device), one.valid)
                for one in (self, fresh)
            ]
            self._cache, self._attention = joined(both, self._model.new_cache())
            self._position = torch.cat([self._position, fresh._position])
        order = [*(row for row, _ in known), *new]
        if order == sorted(order):
            return logits
        back = torch.tensor(order, device=logits.device).argsort()
        self.keep(back)
        return logits[back]

    def _continue(self, contexts: Sequence[Tensor], prefixes: Sequence[Prefix]) -> Tensor:
        """The logits after one pass over what follows these prefixes, sorted by their part."""
        device = self._model.device
        sources = []
        for _, group in groupby(prefixes, key=lambda own: id(own.part)):
            owns = [*group]
            part, rows = owns[0].part, torch.tensor([own.row for own in owns], device=device)
            sources.append((part.cache, rows, part.valid[rows]))
        self._cache, cached = joined(sources, self._model.new_cache())
        lengths = [own.length for own in prefixes]
        rest = [context[length:] for context, length in zip(contexts, lengths, strict=True)]
        ids, attention, places = left_padded(rest, device)
        positions = places + torch.tensor(lengths, device=device).unsqueeze(1)
        self._attention = torch.cat([cached, attention], dim=1)
        self._position = positions[:, -1]
        return self._pass(ids, positions)

    @property
    def valid(self) -> Tensor:
        """[n, s] bool: the positions of the cache that have a token."""
        if self._attention is not None:
            return self._attention.bool()
        shape = len(self._position), self._cache.get_seq_length()
        return torch.ones(shape, dtype=torch.bool, device=self._position.device)

    def part(self, lengths: Tensor, rows: Tensor | None = None) -> Part | None:
        """The prefixes of these rows (all if None, without a copy) for later; None where the cache
        does not keep every token.

        lengths: [n] of the tokens drawn for each row, of which all but the last are kept.
        """
        if not is_roomy(self._cache):
            return None
        valid = self.valid
        width = valid.shape[1]
        stops = width - self._steps + lengths - 1
        valid = valid & (torch.arange(width, device=valid.device) < stops.unsqueeze(1))
        if rows is None:
            return Part(self._cache, valid)
        cache, attention = joined([(self._cache, rows, valid[rows])], self._model.new_cache())
        return Part(cache, attention.bool())

    def advance(self, tokens: Tensor) -> Tensor:
        """[n, v] logits after appending a token [n] to each row."""
        self._steps += 1
        self._position = self._position + 1
        if self._attention is not None:
            ones = self._attention.new_ones(len(tokens), 1)
            self._attention = torch.cat([self._attention, ones], dim=1)
        return self._pass(tokens.unsqueeze(1), self._position.unsqueeze(1))

    def keep(self, rows: Tensor) -> None:
        """Continue with these rows only; a row may repeat."""
        self._cache.reorder_cache(rows)
        self._position = self._position[rows]
        if self._attention is not None:
            self._attention = self._attention[rows]

    def _pass(self, ids: Tensor, positions: Tensor) -> Tensor:
        context = {"attention": self._attention, "positions": positions, "cache": self._cache}
        return self._model(lambda hidden: hidden(ids, **context, keep=1)[:, -1], self._numerics)


class Recomputed:
    """Rows without a cache, computed whole at every step; the methods of `Cached` for steps."""

    def __init__(
        self,
        model: CausalModel,
        numerics: Numerics,
        contexts: Sequence[Tensor],
        copies: Sequence[int],
    ) -> None:
        self._model, self._numerics = model, numerics
        self._ids, self._lengths = right_padded(repeated(contexts, copies), model.device)

    def start(self) -> Tensor:
        return self._model(self._last, self._numerics)

    def advance(self, tokens: Tensor) -> Tensor:
        if int(self._lengths.max()) == self._ids.shape[1]:
            self._ids = torch.nn.functional.pad(self._ids, (0, 1))
        self._ids.scatter_(1, self._lengths.unsqueeze(1), tokens.unsqueeze(1))
        self._lengths = self._lengths + 1
        return self.start()

    def keep(self, rows: Tensor) -> None:
        self._lengths = self._lengths[rows]
        self._ids = self._ids[rows, : int(self._lengths.max())]

    def _last(self, hidden: Hidden) -> Tensor:
        """[n, h] hidden states of each row's last token."""
        shortest = int(self._lengths.min())
        states = hidden(self._ids, keep=self._ids.shape[1] - shortest + 1)
        rows = torch.arange(len(states), device=states.device)
        return states[rows, self._lengths - shortest]


def begin(
    model: CausalModel,
    numerics: Numerics,
    contexts: Sequence[Tensor],
    copies: Sequence[int],
    way: Way,
    *,
    prefixes: Sequence[Prefix | None],
) -> Cached | Recomputed:
    """The rows of these contexts, with or without a cache."""
    if way.cached:
        return Cached(model, numerics, contexts, copies, way, prefixes=prefixes)
    return Recomputed(model, numerics, contexts, copies)


def repeated(values: Sequence[Any], copies: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, copies, strict=True) for _ in range(count)]
