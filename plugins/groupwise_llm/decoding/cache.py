"""A KV cache for decoding that is preallocated, so that a new token does not copy it."""

from typing import Any

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

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values; returns all of them, as views that the next call overwrites."""
        start: int = self.get_seq_length()
        if start == 0:
            return super().update(key_states, value_states)
        stop = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < stop:
            self._room = _roomier(self.keys, stop), _roomier(self.values, stop)
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, start:stop] = states
        self.keys, self.values = [room[:, :, :stop] for room in self._room]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._room = None


def _roomier(states: Tensor, tokens: int) -> Tensor:
    """A copy of states with room for this many tokens and some more."""
    rows, heads, length, size = states.shape
    room = states.new_empty(rows, heads, tokens + max(LEAST, tokens // 4), size)
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
