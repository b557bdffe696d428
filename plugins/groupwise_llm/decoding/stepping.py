"""Stepping: the next token's logits for a batch of rows, with a KV cache or recomputed each
time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise_llm.decoding.cache import with_room
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
    """Rows with a KV cache; prompt i has copies[i] rows."""

    def __init__(
        self,
        model: CausalModel,
        numerics: Numerics,
        prompts: Sequence[Tensor],
        copies: Sequence[int],
        way: Way,
    ) -> None:
        self._model, self._numerics, self._way = model, numerics, way
        self._prompts, self._copies = prompts, copies

    def start(self) -> Tensor:
        """[n, v] logits of each row's first token."""
        device = self._model.device
        prompts = self._prompts if self._way.shared else repeated(self._prompts, self._copies)
        ids, attention, positions = left_padded(prompts, device)
        self._cache = with_room(self._model.new_cache())
        # Without padding no mask is needed, and attention without a mask is faster.
        even = len({len(prompt) for prompt in prompts}) == 1
        self._attention = None if even or not self._way.padded else attention
        self._position = positions[:, -1]
        logits = self._pass(ids, positions)
        if self._way.shared and max(self._copies) > 1:
            copies = torch.tensor(self._copies, device=device)
            rows = torch.arange(len(prompts), device=device).repeat_interleave(copies)
            self.keep(rows)
            logits = logits[rows]
        return logits

    def advance(self, tokens: Tensor) -> Tensor:
        """[n, v] logits after appending a token [n] to each row."""
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
    """Rows without a cache, computed whole at every step; the same methods as `Cached`."""

    def __init__(
        self,
        model: CausalModel,
        numerics: Numerics,
        prompts: Sequence[Tensor],
        copies: Sequence[int],
    ) -> None:
        self._model, self._numerics = model, numerics
        self._ids, self._lengths = right_padded(repeated(prompts, copies), model.device)

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
    prompts: Sequence[Tensor],
    copies: Sequence[int],
    way: Way,
) -> Cached | Recomputed:
    """The rows of these prompts, with or without a cache."""
    if way.cached:
        return Cached(model, numerics, prompts, copies, way)
    return Recomputed(model, numerics, prompts, copies)


def repeated(prompts: Sequence[Tensor], copies: Sequence[int]) -> list[Tensor]:
    return [prompt for prompt, count in zip(prompts, copies, strict=True) for _ in range(count)]
