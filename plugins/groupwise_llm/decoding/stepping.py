"""Stepping: rows that go on by one token at a time, with a cache or computed anew every time."""

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
    """What is relied on when completions are decoded; what a model allows, `probes` finds out.

    shared: a prompt's cache may be repeated for its group.
    padded: prompts of different length may stand in one batch, the shorter ones padded on the left.
    cached: the model goes on from a cache at all. Without one every step computes the whole row,
        padded on the right, which any causal model allows.
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
    """Rows with a cache of what they have seen; of each prompt as many rows as `copies` says."""

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
        """[n, v] the logits of each row's first token."""
        device = self._model.device
        prompts = self._prompts if self._way.shared else repeated(self._prompts, self._copies)
        ids, attention, positions = left_padded(prompts, device)
        self._cache = with_room(self._model.new_cache())
        # Where nothing is padded no mask is needed, and attention without one is quicker.
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
        """[n, v] the logits after one more token [n] of each row."""
        self._position = self._position + 1
        if self._attention is not None:
            seen = self._attention.new_ones(len(tokens), 1)
            self._attention = torch.cat([self._attention, seen], dim=1)
        return self._pass(tokens.unsqueeze(1), self._position.unsqueeze(1))

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone, which may repeat."""
        self._cache.reorder_cache(rows)
        self._position = self._position[rows]
        if self._attention is not None:
            self._attention = self._attention[rows]

    def _pass(self, ids: Tensor, positions: Tensor) -> Tensor:
        seen = {"attention": self._attention, "positions": positions, "cache": self._cache}
        return self._model(lambda hidden: hidden(ids, **seen, keep=1)[:, -1], self._numerics)


class Recomputed:
    """Rows computed from their first token at every step; the same three methods."""

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
        """[n, h] the hidden states of each row's last token."""
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
    """The rows of these prompts, as the model allows."""
    if way.cached:
        return Cached(model, numerics, prompts, copies, way)
    return Recomputed(model, numerics, prompts, copies)


def repeated(prompts: Sequence[Tensor], copies: Sequence[int]) -> list[Tensor]:
    return [prompt for prompt, count in zip(prompts, copies, strict=True) for _ in range(count)]
