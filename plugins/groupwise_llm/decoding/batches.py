"""Sampling completions in process, batch by batch, token by token.

Rows that have ended leave the batch, and rows that wait take their place. What is drawn depends on
its seed and context only, not on its batch: each row has a generator for its uniforms, and tokens
follow from them by inverse transform sampling (`drawing`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from groupwise.kit import progress
from groupwise_llm.decoding.decoder import Decoder
from groupwise_llm.decoding.graphs import Graph, pays
from groupwise_llm.decoding.prefill import begin, merged
from groupwise_llm.decoding.prefixes import Part, Prefix
from groupwise_llm.decoding.slots import Slots
from groupwise_llm.decoding.stepping import Cached, Fixed, Recomputed
from groupwise_llm.decoding.work import Batch, Piece, Work

COMPACT_AT = 0.85
"""Ended rows leave the batch when at most this share is unfinished: dropping copies the cache."""
CAPTURED_COMPACT_AT = 0.5
"""The same where tokens are captured: then a smaller batch is captured anew, too."""
CHECK_EVERY = 16
"""Tokens between two checks for ended rows on an accelerator, where the host waits at each."""


def check_interval(device: torch.device) -> int:
    """Tokens between two checks for ended rows. Rows that end in between are decoded on without
    effect; a CPU checks at every token, as it need not wait."""
    return 1 if device.type == "cpu" else CHECK_EVERY


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """N turns: ids [N, T] padded with 0, log_probs [N, T], mask [N, T], truncated [N], broken [N],
    that end since the next token has logits that are not finite; and means over the tokens of each:
    kept [N], `drawing.overlap` of the softmax and the distribution sampled from, and entropy [N],
    of the softmax."""

    ids: Tensor
    log_probs: Tensor
    mask: Tensor
    truncated: Tensor
    broken: Tensor
    kept: Tensor
    entropy: Tensor

    @staticmethod
    def of(parts: Sequence[Slots]) -> "Sampled":
        """The turns of slots that together have the rows 0 to N - 1."""
        order = torch.cat([part.rows for part in parts]).argsort()

        def joined(*columns: Tensor) -> Tensor:
            return torch.cat(columns)[order]

        def padded(*columns: Tensor) -> Tensor:
            # A negative padding cuts.
            return joined(*(pad(own, (0, longest - own.shape[1])) for own in columns))

        length = joined(*(part.length for part in parts))
        longest = int(length.max())
        mask = torch.arange(longest, device=length.device) < length.unsqueeze(1)
        count = length.clamp(min=1)
        return Sampled(
            ids=padded(*(part.ids for part in parts)).where(mask, 0),
            log_probs=padded(*(part.log_probs[:, :-1] for part in parts)),
            mask=mask,
            truncated=~joined(*(part.stopped for part in parts)),
            broken=joined(*(part.broken for part in parts)),
            kept=joined(*(part.kept for part in parts)) / count,
            entropy=joined(*(part.entropy for part in parts)) / count,
        )


@torch.no_grad()
def decode(decoder: Decoder, work: Work) -> Sampled:
    """A turn for each row."""
    parts: list[Slots] = []
    with decoder.model.sampling(decoder.numerics):
        mixed = decoder.way.padded or not decoder.way.cached
        waiting = work.pieces(decoder.cache_tokens)
        while waiting:
            batch = work.take(waiting, decoder.cache_tokens, mixed=mixed)
            parts += _Batch(decoder, work, batch, waiting).run()
    return Sampled.of(parts)


class _Batch:
    """A batch of the work. slots: the rows in it; left: those that have left it, with their caches
    where these are kept; waiting: pieces of the work that may join it; remaining: most tokens that
    a row of it may still draw; living: rows that had not ended when that was last checked; graph:
    that of a token, None where tokens are not captured."""

    def __init__(self, decoder: Decoder, work: Work, batch: Batch, waiting: deque[Piece]) -> None:
        self.decoder, self.work, self.waiting = decoder, work, waiting
        self.left: list[tuple[Part | None, Slots]] = []
        self.living = 0
        self.slots, self.rows = self._begin(batch)
        self.remaining = max(work.limits[row] for _, rows in batch for row in rows) - 1
        self._fix()

    def _begin(self, batch: Batch, beside: int = 0) -> tuple[Slots, Cached | Recomputed]:
        """The rows of a batch, each with its first token; beside: rows in the cache already."""
        decoder, own = self.decoder, self.work.select(batch)
        slots = Slots.of(own, [row for _, rows in batch for row in rows], decoder.model)
        self.living += len(slots.over)
        copies = [len(rows) for _, rows in batch]
        logits, rows = begin(decoder, own.contexts, copies, self._prefixes(own, beside))
        slots.choose(decoder, logits)
        return slots, rows

    def _fix(self) -> None:
        """Have tokens captured, where they may be and enough follow."""
        self.graph: Graph | None = None
        if self.decoder.way.graphs and isinstance(self.rows, Cached) and pays(self.remaining + 1):
            self.graph = Graph(strict=self.decoder.strict)
            self.rows = Fixed(self.rows, self.remaining + 1)

    def _prefixes(self, own: Work, beside: int) -> list[Prefix | None]:
        """What is known of the batch's contexts; room is made for the batch."""
        cache = self.decoder.prefixes
        if cache is None:
            return [None] * len(own.contexts)
        prefixes = cache.take(own.contexts, own.drawn)
        longest = max(map(len, own.contexts)) + max(own.limits)
        cache.shrink(self.decoder.cache_tokens - (len(own.owners) + beside) * longest)
        return prefixes

    def run(self) -> list[Slots]:
        """All rows, decoded."""
        step = 0
        while self.remaining:
            step += 1
            if step % self.decoder.check_every == 0 and not self._check():
                break
            self._advance(left=self.remaining)
            self.remaining -= 1
            progress.count("tokens", self.living)
        self.left.append((self._part(), self.slots))
        self._keep_prefixes()
        return [slots for _, slots in self.left]

    def _check(self) -> bool:
        """Whether any row goes on; if few do, the others leave the batch, and others join it."""
        over = self.slots.over
        living = int(over.logical_not().sum())
        progress.count("completions", self.living - living, early=True)
        self.living = living
        few = COMPACT_AT if self.graph is None else CAPTURED_COMPACT_AT
        if 0 < living <= few * len(over) and living < len(over):
            order = over.to(torch.int8).argsort(stable=True)
            self._drop(order[living:], keep=order[:living])
            self._join(living)
        return living > 0

    def _join(self, living: int) -> None:
        """Take rows that wait, beside so many that go on."""
        decoder, work = self.decoder, self.work
        if not (self.waiting and decoder.joins and isinstance(self.rows, Cached)):
            return
        beside = living, int(self.rows.valid.sum(dim=1).max()), self.remaining
        batch = work.take(self.waiting, decoder.cache_tokens, mixed=True, beside=beside)
        if not batch:
            return
        # What has left is dropped first, where its memory is needed.
        self._keep_prefixes()
        self.left = [(None, slots) for _, slots in self.left]
        slots, rows = self._begin(batch, living)
        assert isinstance(rows, Cached)
        self.slots = self.slots.beside(slots)
        self.rows = merged(self.decoder.model, self.slots.length, self.rows, rows)
        limits = [work.limits[row] for _, own in batch for row in own]
        self.remaining = max(self.remaining, max(limits) - 1)
        self._fix()

    def _advance(self, left: int) -> None:
        """One token more. left: how many may follow, with this one."""
        if self.graph is None:
            self._token()
            return
        assert isinstance(self.rows, Fixed)
        if self.rows.make_room():
            self.graph.forget()
        self.graph.run(self._fused_token if self.decoder.way.fused else self._token, left)

    def _token(self) -> None:
        self.slots.choose(self.decoder, self.rows.advance(self.slots.tokens))

    def _fused_token(self) -> None:
        with self.decoder.model.fusion.on():
            self._token()

    def _drop(self, rows: Tensor, *, keep: Tensor) -> None:
        """These rows leave the batch, those to keep stay."""
        self.left.append((self._part(rows), self.slots.select(rows)))
        self.slots = self.slots.select(keep)
        if self.graph is not None:
            self.graph.forget()
        self.rows.keep(keep)

    def _part(self, rows: Tensor | None = None) -> Part | None:
        """The cache of these rows, of all if None; None if it is not kept."""
        if self.decoder.prefixes is None or not isinstance(self.rows, Cached):
            return None
        return self.rows.part(self.slots.length, rows)

    def _keep_prefixes(self) -> None:
        """Add the rows to the prefix cache, except those whose logits were not finite."""
        cache, work = self.decoder.prefixes, self.work
        if cache is None:
            return
        for part, slots in self.left:
            if part is None:
                continue
            columns = slots.rows, slots.ids, slots.length, slots.broken
            rows, ids, lengths, broken = [column.cpu() for column in columns]
            contexts = [
                None
                if broken[own]
                else torch.cat([work.contexts[work.owners[row]], ids[own, : lengths[own]]])
                for own, row in enumerate(rows.tolist())
            ]
            cache.add(part, contexts)
