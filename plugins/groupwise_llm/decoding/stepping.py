"""Stepping: the next token's logits for a batch of rows, with a KV cache or recomputed each
time."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from groupwise_llm.decoding import cache as caches
from groupwise_llm.decoding.prefixes import Part
from groupwise_llm.model.causal import CausalModel, Hidden
from groupwise_llm.model.copies import Numerics
from groupwise_llm.training.passes import right_padded


class Cached:
    """Rows with a KV cache, after the pass over their contexts.

    attention: [n, s] where the cache has a token of the row, None if everywhere. positions: [n] of
    each row's next token. width: [n] columns of the cache before each row's first drawn token.
    """

    def __init__(
        self,
        model: CausalModel,
        numerics: Numerics,
        cache: DynamicCache,
        *,
        attention: Tensor | None,
        positions: Tensor,
        width: Tensor,
    ) -> None:
        self.model, self.numerics, self.cache = model, numerics, cache
        self.attention, self.positions, self.width = attention, positions, width

    @property
    def valid(self) -> Tensor:
        """[n, s] bool: where the cache has a token of the row."""
        if self.attention is not None:
            return self.attention.bool()
        shape = len(self.positions), self.cache.get_seq_length()
        return torch.ones(shape, dtype=torch.bool, device=self.positions.device)

    def part(self, lengths: Tensor, rows: Tensor | None = None) -> Part | None:
        """The prefixes of these rows (all if None, without a copy) for later; None where the cache
        does not keep every token.

        lengths: [n] of the tokens drawn for each row, of which all but the last are kept.
        """
        if not caches.is_roomy(self.cache):
            return None
        valid = self.valid
        columns = torch.arange(valid.shape[1], device=valid.device)
        valid = valid & (columns < (self.width + lengths - 1).unsqueeze(1))
        if rows is None:
            return Part(self.cache, valid)
        cache, attention = caches.joined([(self.cache, rows, valid[rows])], self.model.new_cache())
        return Part(cache, attention.bool())

    def advance(self, tokens: Tensor) -> Tensor:
        """[n, v] logits after appending a token [n] to each row."""
        if self.attention is not None:
            self.attention = pad(self.attention, (0, 1), value=1)
        return self.step(tokens)

    def step(self, tokens: Tensor) -> Tensor:
        """[n, v] logits after a token [n] of each row, at its next position."""
        context = {"attention": self.attention, "positions": self.positions.unsqueeze(1)}

        def run(hidden: Hidden) -> Tensor:
            return hidden(tokens.unsqueeze(1), **context, cache=self.cache, keep=1)[:, -1]

        logits = self.model(run, self.numerics)
        self.positions.add_(1)
        return logits

    def keep(self, rows: Tensor) -> None:
        """Continue with these rows only; a row may repeat."""
        self.cache.reorder_cache(rows)
        self.positions, self.width = self.positions[rows], self.width[rows]
        if self.attention is not None:
            self.attention = self.attention[rows]


class Fixed(Cached):
    """Rows whose tensors stay in place from token to token, so that a token can be captured.

    The cache returns its whole room, and keys and values are written at `column`, a number on the
    device. `attention` [n, 1, 1, room] is added to the attention's scores, as transformers takes it
    without making a mask of its own: 0 where there is a token of the row, else the dtype's lowest
    number.
    """

    attention: Tensor

    LEAST = 512
    """The room grows by at least so many tokens, or to twice its size where that is more: then it
    is copied, and tokens are captured anew."""

    def __init__(self, rows: Cached, limit: int) -> None:
        """rows: those that go on, not used any more; limit: most tokens drawn, with the next one.

        Raises TypeError where the cache does not keep every token.
        """
        if not caches.is_roomy(rows.cache):
            raise TypeError("its cache does not keep the keys and values of every token")
        valid = rows.valid
        dtype = caches.dtype_of(rows.cache)
        mask = torch.zeros(valid.shape, dtype=dtype, device=valid.device)
        mask = mask.masked_fill(~valid, torch.finfo(dtype).min)[:, None, None]
        super().__init__(
            rows.model,
            rows.numerics,
            rows.cache,
            attention=mask,
            positions=rows.positions,
            width=rows.width,
        )
        # The last token that is drawn is never passed through the model, so it needs no room.
        self.used, self.most = valid.shape[1], valid.shape[1] + limit - 1
        self.column = torch.full((1,), self.used, device=valid.device)
        self._grow()

    @property
    def valid(self) -> Tensor:
        return self.attention[:, 0, 0] == 0

    def make_room(self) -> bool:
        """Provide for one token more; whether tensors had to be replaced."""
        self.used += 1
        if self.used <= self.attention.shape[-1]:
            return False
        self._grow()
        return True

    def _grow(self) -> None:
        # A multiple of 16: else attention kernels copy the mask at every layer.
        room = -(-min(self.most, max(self.used + self.LEAST, 2 * self.used)) // 16) * 16
        lowest = torch.finfo(self.attention.dtype).min
        self.attention = pad(self.attention, (0, room - self.attention.shape[-1]), value=lowest)
        caches.fix(self.cache, room, self.column)

    def advance(self, tokens: Tensor) -> Tensor:
        self.attention.index_fill_(3, self.column, 0.0)
        logits = self.step(tokens)
        self.column.add_(1)
        return logits


class Recomputed:
    """Rows without a cache, computed whole at every step; the methods of `Cached` for steps.

    contexts: one for each row.
    """

    def __init__(self, model: CausalModel, numerics: Numerics, contexts: Sequence[Tensor]) -> None:
        self._model, self._numerics = model, numerics
        self._ids, self._lengths = right_padded(contexts, model.device)

    def start(self) -> Tensor:
        return self._model(self._last, self._numerics)

    def advance(self, tokens: Tensor) -> Tensor:
        if int(self._lengths.max()) == self._ids.shape[1]:
            self._ids = pad(self._ids, (0, 1))
        self._ids.scatter_(1, self._lengths.unsqueeze(1), tokens.unsqueeze(1))
        self._lengths = self._lengths + 1
        return self.start()

    def keep(self, rows: Tensor) -> None:
        self._lengths = self._lengths[rows]
        self._ids = self._ids[rows, : int(self._lengths.max())]

    def _last(self, hidden: Hidden) -> Tensor:
        """[n, h] hidden states of each row's last token."""
        shortest = int(self._lengths.min())
        positions = self._model.positions(self._ids, None)
        states = hidden(self._ids, positions=positions, keep=self._ids.shape[1] - shortest + 1)
        rows = torch.arange(len(states), device=states.device)
        return states[rows, self._lengths - shortest]
