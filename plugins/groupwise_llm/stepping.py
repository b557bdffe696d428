"""Stepping: rows that go on by one token at a time, with a cache or computed anew every time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise_llm.body import Body
from groupwise_llm.passes import left_padded, right_padded


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
        self, body: Body, prompts: Sequence[Tensor], copies: Sequence[int], way: Way
    ) -> None:
        self._body, self._prompts, self._copies, self._way = body, prompts, copies, way

    def start(self) -> Tensor:
        """[n, h] the last hidden states of the prompts."""
        device = self._body.device
        prompts = self._prompts if self._way.shared else repeated(self._prompts, self._copies)
        ids, attention, positions = left_padded(prompts, device)
        self._cache = self._body.new_cache()
        self._attention = attention if self._way.padded else None
        self._position = positions[:, -1]
        hidden = self._pass(ids, positions)
        if self._way.shared and max(self._copies) > 1:
            copies = torch.tensor(self._copies, device=device)
            rows = torch.arange(len(prompts), device=device).repeat_interleave(copies)
            self.keep(rows)
            hidden = hidden[rows]
        return hidden

    def advance(self, tokens: Tensor) -> Tensor:
        """[n, h] the hidden states of one more token [n] of each row."""
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
        return self._body.hidden(
            ids, attention=self._attention, positions=positions, cache=self._cache, keep=1
        )[:, -1]


class Recomputed:
    """Rows computed from their first token at every step; the same three methods."""

    def __init__(self, body: Body, prompts: Sequence[Tensor], copies: Sequence[int]) -> None:
        self._body = body
        self._ids, self._lengths = right_padded(repeated(prompts, copies), body.device)

    def start(self) -> Tensor:
        shortest = int(self._lengths.min())
        keep = self._ids.shape[1] - shortest + 1
        hidden = self._body.hidden(self._ids, keep=keep)
        rows = torch.arange(len(hidden), device=hidden.device)
        return hidden[rows, self._lengths - shortest]

    def advance(self, tokens: Tensor) -> Tensor:
        if int(self._lengths.max()) == self._ids.shape[1]:
            self._ids = torch.nn.functional.pad(self._ids, (0, 1))
        self._ids.scatter_(1, self._lengths.unsqueeze(1), tokens.unsqueeze(1))
        self._lengths = self._lengths + 1
        return self.start()

    def keep(self, rows: Tensor) -> None:
        self._lengths = self._lengths[rows]
        self._ids = self._ids[rows, : int(self._lengths.max())]


def begin(
    body: Body, prompts: Sequence[Tensor], copies: Sequence[int], way: Way
) -> Cached | Recomputed:
    """The rows of these prompts, as the model allows."""
    return Cached(body, prompts, copies, way) if way.cached else Recomputed(body, prompts, copies)


def repeated(prompts: Sequence[Tensor], copies: Sequence[int]) -> list[Tensor]:
    return [prompt for prompt, count in zip(prompts, copies, strict=True) for _ in range(count)]
