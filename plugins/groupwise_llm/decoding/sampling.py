"""Sampling completions in process, batch by batch, token by token.

Rows that have ended leave the batch. A completion depends on its own seed only, not on its batch:
each row has a generator for its uniforms, and tokens follow from them by inverse transform
sampling (`drawing`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from groupwise_llm.decoding import drawing
from groupwise_llm.decoding.stepping import Way, begin
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
    """N completions: ids [N, T] padded with 0, log_probs [N, T], mask [N, T], truncated [N], broken
    [N], that end since the next token has logits that are not finite; and means over the tokens of
    each: kept [N], `drawing.overlap` of the softmax and the distribution sampled from, and entropy
    [N], of the softmax."""

    ids: Tensor
    log_probs: Tensor
    mask: Tensor
    truncated: Tensor
    broken: Tensor
    kept: Tensor
    entropy: Tensor


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Everything about decoding that is the same for all batches.

    temperature: of the log-probs; sampling_temperature: of the distribution that is drawn from.
    filters: logits processors (top_k and the like) for drawing; log-probs are without them.
    ends: ids of end tokens; stop: tells which rows of ids [n, t] end with a stop string.
    cache_tokens: most tokens of prompts and completions in the cache at once.
    check_every: tokens between two checks for ended rows.
    """

    model: CausalModel
    numerics: Numerics
    way: Way
    filters: LogitsProcessorList
    ends: Tensor
    stop: Callable[[Tensor, None], Tensor] | None
    temperature: float
    sampling_temperature: float
    max_new_tokens: int
    cache_tokens: int
    check_every: int


@torch.no_grad()
def decode(
    decoder: Decoder, prompts: Sequence[Tensor], group_size: int, draws: Tensor | None
) -> Sampled:
    """`group_size` completions for each prompt; `draws` [N, T] uniforms, or None for greedy."""
    order, parts = [], []
    with decoder.model.sampling(decoder.numerics):
        for batch in batches(decoder, [len(prompt) for prompt in prompts], group_size):
            rows = [row for part in batch for row in part]
            heads = [prompts[part.start // group_size] for part in batch]
            uniforms = None if draws is None else draws[rows]
            parts.append(_Batch(decoder, heads, [len(part) for part in batch], uniforms).run())
            order += rows
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


def batches(decoder: Decoder, lengths: Sequence[int], group_size: int) -> Iterator[list[range]]:
    """Split N rows into batches; each is a list of ranges of rows, one range per prompt.

    lengths: of the prompts; row i belongs to prompt i // group_size. rows * (longest prompt +
    max_new_tokens) of a batch is at most `cache_tokens`, unless it has one row. A group is divided
    only if it alone exceeds that.
    """
    mixed = decoder.way.padded or not decoder.way.cached
    batch: list[range] = []
    for prompt in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens = lengths[prompt] + decoder.max_new_tokens
        size = min(group_size, max(1, decoder.cache_tokens // tokens))
        for start in range(0, group_size, size):
            rows = range(
                prompt * group_size + start, prompt * group_size + min(start + size, group_size)
            )
            count = sum(map(len, batch)) + len(rows)
            alike = mixed or all(lengths[prompt] == lengths[b.start // group_size] for b in batch)
            if batch and not (alike and count * tokens <= decoder.cache_tokens):
                yield batch
                batch = []
            batch.append(rows)
    yield batch


class _Batch:
    """The rows being decoded; alive [n] are the indices, among all N, of rows still in the
    batch."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Tensor],
        copies: Sequence[int],
        draws: Tensor | None,
    ) -> None:
        self.decoder = decoder
        self.rows = begin(decoder.model, decoder.numerics, prompts, copies, decoder.way)
        device, limit = decoder.ends.device, decoder.max_new_tokens
        size = sum(copies)
        self.draws = None if draws is None else draws.to(drawing.place(device))
        self.alive = torch.arange(size, device=device)
        self.ended, self.broken = torch.zeros(2, size, dtype=torch.bool, device=device)
        # The repetition penalty reads the prompt, too. Padding is replaced by the prompt's last
        # token, which is penalised anyway.
        ids, attention, _ = left_padded(prompts, device)
        rows = torch.tensor(copies, device=device)
        self.history = torch.where(attention.bool(), ids, ids[:, -1:]).repeat_interleave(rows, 0)
        self.ids = torch.zeros(size, limit, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(size, limit, dtype=torch.float32, device=device)
        self.length = torch.zeros(size, dtype=torch.int64, device=device)
        self.kept, self.entropy = torch.zeros(2, size, dtype=torch.float32, device=device)

    def run(self) -> Sampled:
        logits = self.rows.start()
        for step in range(self.decoder.max_new_tokens):
            tokens = self._choose(logits, step)
            if step + 1 == self.decoder.max_new_tokens:
                break
            if (step + 1) % self.decoder.check_every == 0:
                living = (~self.ended[self.alive]).nonzero().flatten()
                if not len(living):
                    break
                if len(living) <= COMPACT_AT * len(self.alive):
                    tokens = self._drop(living, tokens)
            logits = self.rows.advance(tokens)
        longest = int(self.length.max())
        mask = torch.arange(longest, device=self.ids.device) < self.length.unsqueeze(1)
        return Sampled(
            ids=self.ids[:, :longest],
            log_probs=self.log_probs[:, :longest],
            mask=mask,
            truncated=~self.ended,
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
        self.broken[alive] |= ~normaliser.isfinite() & ~self.ended[alive]
        self.ended[alive] |= self.broken[alive]
        living = ~self.ended[alive]
        chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - normaliser
        self.ids[alive, step] = tokens.where(living, 0)
        self.log_probs[alive, step] = chosen.where(living, 0.0)
        self.kept[alive] += kept.where(living, 0.0)
        entropy = drawing.entropy(logits, powers, sums, normaliser)
        self.entropy[alive] += entropy.where(living, 0.0)
        self.length[alive] += living
        self.ended[alive] |= self._over(tokens, step)
        if decoder.filters:
            self.history = torch.cat([self.history, tokens.unsqueeze(1)], dim=1)
        return tokens

    def _over(self, tokens: Tensor, step: int) -> Tensor:
        """Which rows end with this token: an end token, or the last token of a stop string."""
        over = torch.isin(tokens, self.decoder.ends)
        if self.decoder.stop is not None:
            over |= self.decoder.stop(self.ids[self.alive, : step + 1], None)
        return over

    def _drop(self, keep: Tensor, tokens: Tensor) -> Tensor:
        """Keep only these rows in the batch."""
        self.rows.keep(keep)
        self.alive = self.alive[keep]
        if self.decoder.filters:
            self.history = self.history[keep]
        return tokens[keep]
