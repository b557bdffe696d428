"""Sampling completions in process, batch by batch, token by token.

Rows that have ended leave the batch. What is drawn depends on its seed and context only, not on its
batch: each row has a generator for its uniforms, and tokens follow from them by inverse transform
sampling (`drawing`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from groupwise_llm.decoding import drawing
from groupwise_llm.decoding.prefixes import Part, Prefix, PrefixCache
from groupwise_llm.decoding.stepping import Cached, Way, begin
from groupwise_llm.decoding.work import Work
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.model.copies import Numerics
from groupwise_llm.training.passes import left_padded

COMPACT_AT = 0.85
"""Ended rows leave the batch when at most this share is unfinished: dropping copies the cache."""
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


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Everything about decoding that is the same for all turns.

    temperature: of the log-probs; sampling_temperature: of the distribution that is drawn from.
    filters: logits processors (top_k and the like) for drawing; log-probs are without them.
    ends: ids of end tokens; stop: tells which rows of ids [n, t] end with a stop string.
    cache_tokens: most tokens of contexts and turns in the cache at once.
    check_every: tokens between two checks for ended rows.
    prefixes: keeps what was computed for contexts that may go on; None if nothing is kept.
    """

    model: CausalModel
    numerics: Numerics
    way: Way
    filters: LogitsProcessorList
    ends: Tensor
    stop: Callable[[Tensor, None], Tensor] | None
    temperature: float
    sampling_temperature: float
    cache_tokens: int
    check_every: int
    prefixes: PrefixCache | None = None


@torch.no_grad()
def decode(decoder: Decoder, work: Work) -> Sampled:
    """A turn for each row."""
    order, parts = [], []
    with decoder.model.sampling(decoder.numerics):
        mixed = decoder.way.padded or not decoder.way.cached
        for batch in work.batches(decoder.cache_tokens, mixed=mixed):
            parts.append(_Batch(decoder, work.select(batch)).run())
            order += [row for _, rows in batch for row in rows]
    places = torch.tensor(order).argsort().to(decoder.ends.device)
    longest = max(part.mask.shape[1] for part in parts)

    def joined(name: str) -> Tensor:
        columns = [getattr(part, name) for part in parts]
        padded = [
            torch.nn.functional.pad(column, (0, longest - column.shape[1]))
            if column.ndim > 1
            else column
            for column in columns
        ]
        return torch.cat(padded)[places]

    names = ("ids", "log_probs", "mask", "truncated", "broken", "kept", "entropy")
    return Sampled(**{name: joined(name) for name in names})


class _Batch:
    """The rows being decoded; alive [n] are the indices, among all N, of rows still in the
    batch. left: the caches of rows that were dropped from it, if they are kept."""

    def __init__(self, decoder: Decoder, work: Work) -> None:
        self.decoder, self.work = decoder, work
        copies = [len(rows) for rows in work.rows]
        self.rows = begin(
            decoder.model,
            decoder.numerics,
            work.contexts,
            copies,
            decoder.way,
            prefixes=self._prefixes(),
        )
        device, limit = decoder.ends.device, max(work.limits)
        size = len(work.owners)
        self.limit, self.limits = limit, None
        if min(work.limits) < limit:
            self.limits = torch.tensor(work.limits, device=device)
        self.draws = None if work.draws is None else work.draws.to(drawing.place(device))
        self.alive = torch.arange(size, device=device)
        self.over, self.stopped, self.broken = torch.zeros(3, size, dtype=torch.bool, device=device)
        # The repetition penalty reads the context, too. Padding is replaced by the context's last
        # token, which is penalised anyway.
        ids, attention, _ = left_padded(work.contexts, device)
        rows = torch.tensor(copies, device=device)
        self.history = torch.where(attention.bool(), ids, ids[:, -1:]).repeat_interleave(rows, 0)
        self.ids = torch.zeros(size, limit, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(size, limit, dtype=torch.float32, device=device)
        self.length = torch.zeros(size, dtype=torch.int64, device=device)
        self.kept, self.entropy = torch.zeros(2, size, dtype=torch.float32, device=device)
        self.left: list[tuple[Part | None, Tensor]] = []

    def _prefixes(self) -> list[Prefix | None]:
        """What is known of the contexts; room is made for the batch."""
        cache, work = self.decoder.prefixes, self.work
        if cache is None:
            return [None] * len(work.contexts)
        prefixes = cache.take(work.contexts, work.drawn)
        longest = max(map(len, work.contexts)) + max(work.limits)
        cache.shrink(self.decoder.cache_tokens - len(work.owners) * longest)
        return prefixes

    def run(self) -> Sampled:
        logits = self.rows.start()
        for step in range(self.limit):
            tokens = self._choose(logits, step)
            if step + 1 == self.limit:
                break
            if (step + 1) % self.decoder.check_every == 0:
                living = (~self.over[self.alive]).nonzero().flatten()
                if not len(living):
                    break
                if len(living) <= COMPACT_AT * len(self.alive):
                    tokens = self._drop(living, tokens)
            logits = self.rows.advance(tokens)
        self._keep_prefixes()
        longest = int(self.length.max())
        mask = torch.arange(longest, device=self.ids.device) < self.length.unsqueeze(1)
        return Sampled(
            ids=self.ids[:, :longest],
            log_probs=self.log_probs[:, :longest],
            mask=mask,
            truncated=~self.stopped,
            broken=self.broken,
            kept=self.kept / self.length.clamp(min=1),
            entropy=self.entropy / self.length.clamp(min=1),
        )

    def _choose(self, raw: Tensor, step: int) -> Tensor:
        """The next token of every row in the batch, from logits [n, v]; recorded for rows that
        have not ended."""
        decoder, alive = self.decoder, self.alive
        logits = raw if decoder.temperature == 1.0 else raw / decoder.temperature
        powers, sums, normaliser = drawing.softmax(logits)
        kept, weights, drawn = torch.ones_like(normaliser), powers, sums
        if decoder.filters or decoder.sampling_temperature != decoder.temperature:
            weights, drawn, _ = drawing.softmax(
                decoder.filters(self.history, raw / decoder.sampling_temperature)
            )
            kept = drawing.overlap((powers, sums), (weights, drawn))
        if self.draws is None:
            tokens = weights.argmax(dim=-1)
        else:
            uniform = self.draws[alive.to(self.draws.device), step]
            tokens = drawing.inverse_cdf(weights, drawn, uniform)
        # A finite normaliser means that no logit is NaN or +infinity, and not all are -infinity.
        self.broken[alive] |= ~normaliser.isfinite() & ~self.over[alive]
        self.stopped[alive] |= self.broken[alive]
        living = ~(self.over[alive] | self.broken[alive])
        chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - normaliser
        self.ids[alive, step] = tokens.where(living, 0)
        self.log_probs[alive, step] = chosen.where(living, 0.0)
        self.kept[alive] += kept.where(living, 0.0)
        entropy = drawing.entropy(logits, powers, sums, normaliser)
        self.entropy[alive] += entropy.where(living, 0.0)
        self.length[alive] += living
        self.stopped[alive] |= self._stops(tokens, step) & living
        self.over[alive] |= self.stopped[alive]
        if self.limits is not None:
            self.over[alive] |= self.limits[alive] <= step + 1
        if decoder.filters:
            self.history = torch.cat([self.history, tokens.unsqueeze(1)], dim=1)
        return tokens

    def _stops(self, tokens: Tensor, step: int) -> Tensor:
        """Which rows end with this token: an end token, or the last token of a stop string."""
        over = torch.isin(tokens, self.decoder.ends)
        if self.decoder.stop is not None:
            over |= self.decoder.stop(self.ids[self.alive, : step + 1], None)
        return over

    def _drop(self, keep: Tensor, tokens: Tensor) -> Tensor:
        """Keep only these rows in the batch."""
        if self.decoder.prefixes is not None and isinstance(self.rows, Cached):
            others = torch.ones_like(self.alive, dtype=torch.bool).index_fill(0, keep, False)
            dropped = others.nonzero().flatten()
            part = self.rows.part(self.length[self.alive], dropped)
            self.left.append((part, self.alive[dropped]))
        self.rows.keep(keep)
        self.alive = self.alive[keep]
        if self.decoder.filters:
            self.history = self.history[keep]
        return tokens[keep]

    def _keep_prefixes(self) -> None:
        """Add the rows to the prefix cache, except those whose logits were not finite."""
        cache, work = self.decoder.prefixes, self.work
        if cache is None or not isinstance(self.rows, Cached):
            return
        self.left.append((self.rows.part(self.length[self.alive]), self.alive))
        ids, lengths, broken = self.ids.cpu(), self.length.tolist(), self.broken.tolist()
        for part, rows in self.left:
            contexts = [
                None
                if broken[row]
                else torch.cat([work.contexts[work.owners[row]], ids[row, : lengths[row]]])
                for row in rows.tolist()
            ]
            cache.add(part, contexts)
