"""A KV cache for decoding that is preallocated, so that a new token does not copy it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

LEAST = 64
"""The cache grows by at least so many tokens at once, or by a quarter where that is more."""


class RoomyLayer(DynamicLayer):
    """Keys and values [n, heads, tokens, d], written in place, for passes without gradient.

    transformers' own layer copies all of them at every token.
    """

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._room: tuple[Tensor, Tensor] | None = None
        self._column: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values; returns all of them, as views that the next call overwrites."""
        if self._column is not None:
            self.keys.index_copy_(2, self._column, key_states)
            self.values.index_copy_(2, self._column, value_states)
            return self.keys, self.values
        start: int = super().get_seq_length()
        if start == 0:
            return super().update(key_states, value_states)
        stop = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < stop:
            tokens = stop + max(LEAST, stop // 4)
            self._room = _roomier(self.keys, tokens), _roomier(self.values, tokens)
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, start:stop] = states
        self.keys, self.values = [room[:, :, :stop] for room in self._room]
        return self.keys, self.values

    def get_seq_length(self) -> int | Tensor:
        """Tokens that it has; as transformers' static caches, a number on the device once fixed."""
        return super().get_seq_length() if self._column is None else self._column[0]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.is_initialized:
            self.keys = self.keys.index_select(0, beam_idx)
            self.values = self.values.index_select(0, beam_idx)
        self._room = None

    def fill(self, keys: Tensor, values: Tensor, tokens: int) -> None:
        """Use this memory, in which the first `tokens` keys and values are set."""
        self.lazy_initialization(keys, values)
        self._room = keys, values
        self.keys, self.values = [room[:, :, :tokens] for room in self._room]

    def fix(self, tokens: int, column: Tensor) -> None:
        """From now on, write at this column [1] of a room of so many tokens, and return all of it.

        The caller moves the column on, and masks what has not been written yet: zeros, since it
        must be finite.
        """
        if self.is_initialized:
            length = self.keys.shape[-2]
            self.keys, self.values = _roomier(self.keys, tokens), _roomier(self.values, tokens)
            self.keys[:, :, length:] = self.values[:, :, length:] = 0.0
            self._room, self._column = None, column


def _roomier(states: Tensor, tokens: int) -> Tensor:
    """A copy of states in a room for this many tokens."""
    rows, heads, length, size = states.shape
    room = states.new_empty(rows, heads, tokens, size)
    room[:, :, :length] = states
    return room


def with_room(cache: DynamicCache) -> DynamicCache:
    """The cache with preallocated layers for full attention; layers of sliding windows and
    recurrent states stay as they are.

    cache: empty.
    """
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = RoomyLayer
    cache.layers = [RoomyLayer() if type(x) is DynamicLayer else x for x in cache.layers]
    return cache


def fix(cache: DynamicCache, tokens: int, column: Tensor) -> None:
    """`RoomyLayer.fix` for each layer of a cache whose layers are all roomy."""
    for layer in cache.layers:
        layer.fix(tokens, column)


def dtype_of(cache: DynamicCache) -> torch.dtype:
    """The dtype of its keys."""
    dtype: torch.dtype = next(own.keys.dtype for own in cache.layers if own.is_initialized)
    return dtype


def is_roomy(cache: DynamicCache) -> bool:
    """Whether all layers keep the keys and values of every token."""
    return all(type(layer) is RoomyLayer for layer in cache.layers)


def joined(
    sources: Sequence[tuple[DynamicCache, Tensor, Tensor]], empty: DynamicCache
) -> tuple[DynamicCache, Tensor]:
    """Rows of several caches in one, padded on the left; and its attention mask [n, s] int64.

    sources: caches whose layers are all roomy, with the rows [r] to take of each, and where these
    have tokens, [r, t] bool. empty: a new cache, which is filled. Positions without a token are
    left out, and keys stay those of the positions for which they were computed.
    """
    width = max(int(valid.sum(dim=1).max()) for _, _, valid in sources)
    places = [valid.to(torch.int8).argsort(dim=1, stable=True)[:, -width:] for *_, valid in sources]
    attention = torch.cat(
        [
            _left_padded(valid.gather(1, own), width)
            for (*_, valid), own in zip(sources, places, strict=True)
        ]
    )
    layers = [RoomyLayer() for _ in sources[0][0].layers]
    for number, layer in enumerate(layers):
        parts = [
            (own, rows.unsqueeze(1), order)
            for (cache, rows, _), order in zip(sources, places, strict=True)
            if (own := cache.layers[number]).is_initialized
        ]
        if parts:  # some models share a layer's keys and values with other layers
            keys, values = [
                _taken([(getattr(own, name), rows, order) for own, rows, order in parts], width)
                for name in ("keys", "values")
            ]
            layer.fill(keys, values, width)
    empty.layers = layers
    return empty, attention.long()


def _taken(parts: Sequence[tuple[Tensor, Tensor, Tensor]], width: int) -> Tensor:
    """[n, heads, width and room, d] of states [m, heads, t, d] at rows [r, 1], places [r, s]."""
    first = parts[0][0]
    count = sum(len(rows) for _, rows, _ in parts)
    room = first.new_zeros(
        count, first.shape[1], width + max(LEAST, width // 4), first.shape[3]
    )  # zeros: what is masked must be finite
    start = 0
    for states, rows, places in parts:
        stop = start + len(rows)
        taken = states.transpose(1, 2)[rows, places].transpose(1, 2)
        room[start:stop, :, width - places.shape[1] : width] = taken
        start = stop
    return room


def _left_padded(mask: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(mask, (width - mask.shape[1], 0))
