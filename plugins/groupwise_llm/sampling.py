"""Sampling completions in process: prompts prefilled once, decoding with a key-value cache.

Rows that have ended leave the batch. A row's tokens are a function of its own seed: a table of
uniforms is filled by one generator a row, and turned into tokens by the inverse of the cumulative
distribution, so batching changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessorList, StopStringCriteria

Forward = Callable[..., Tensor]
COMPACT_AT = 0.85
"""The share of rows alive below which the others leave the batch: dropping copies the cache."""
LOOK_EVERY = 16
"""Tokens from one look at which rows are alive to the next, where the host waits at every look."""
BLOCK = 256
"""Tokens of the vocabulary whose weights are summed at once."""


def look_every(device: torch.device) -> int:
    """Rows that end between two looks are decoded on, without effect; a CPU saves that work."""
    return 1 if device.type == "cpu" else LOOK_EVERY


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """N completions: ids [N, T] padded with 0, log_probs [N, T], mask [N, T], truncated [N] and
    kept [N], the mean probability mass that the filters left."""

    ids: Tensor
    log_probs: Tensor
    mask: Tensor
    truncated: Tensor
    kept: Tensor


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Everything of decoding that does not change from batch to batch.

    hidden: (ids, attention_mask, position_ids, cache) -> last hidden states [n, t, h].
    logits: hidden states [n, h] -> float32 logits [n, v].
    filters: processors that choose among tokens; log-probs never see them.
    """

    hidden: Forward
    logits: Callable[[Tensor], Tensor]
    new_cache: Callable[[], DynamicCache]
    filters: LogitsProcessorList
    ends: Tensor
    stop: StopStringCriteria | None
    temperature: float
    max_new_tokens: int
    share_prompt: bool


def uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """[N, length] float64 in [0, 1): row i drawn by a generator seeded with seeds[i]."""
    generator = torch.Generator()
    rows = [
        torch.rand(length, generator=generator.manual_seed(seed), dtype=torch.float64)
        for seed in seeds
    ]
    return torch.stack(rows)


def left_padded(prompts: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, attention mask, positions), each [P, L], padded on the left with 0."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    return ids.to(device), mask.to(device), positions.to(device)


@torch.no_grad()
def decode(
    decoder: Decoder, prompts: Sequence[Tensor], group_size: int, draws: Tensor | None
) -> Sampled:
    """`group_size` completions for each prompt; `draws` [N, T] uniforms, or None for greedy."""
    device = decoder.ends.device
    rows = torch.arange(len(prompts), device=device).repeat_interleave(group_size)
    if not decoder.share_prompt:
        prompts = [prompts[row] for row in rows.tolist()]
    ids, attention, positions = left_padded(prompts, device)
    cache = decoder.new_cache()
    last = decoder.hidden(ids, attention, positions, cache, keep=1)[:, 0]
    # Padding for the filters' eyes: a token that the prompt has anyway.
    ids = torch.where(attention.bool(), ids, ids[:, -1:])
    if decoder.share_prompt and group_size > 1:
        cache.batch_select_indices(rows)
        ids, attention, positions, last = ids[rows], attention[rows], positions[rows], last[rows]
    batch = _Batch(
        decoder, cache, prompt_ids=ids, attention=attention, position=positions[:, -1], draws=draws
    )
    return batch.run(last)


class _Batch:
    """The rows being decoded; `alive` maps the rows still in the batch to all N."""

    def __init__(
        self,
        decoder: Decoder,
        cache: DynamicCache,
        *,
        prompt_ids: Tensor,
        attention: Tensor,
        position: Tensor,
        draws: Tensor | None,
    ) -> None:
        size, device = len(prompt_ids), prompt_ids.device
        limit = decoder.max_new_tokens
        self.decoder, self.cache = decoder, cache
        self.draws = None if draws is None else draws.to(device)
        self.alive = torch.arange(size, device=device)
        self.ended = torch.zeros(size, dtype=torch.bool, device=device)
        self.attention, self.position = attention, position
        # Filters such as the repetition penalty look at the prompt, too.
        self.history = prompt_ids
        self.ids = torch.zeros(size, limit, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(size, limit, dtype=torch.float32, device=device)
        self.length = torch.zeros(size, dtype=torch.int64, device=device)
        self.kept = torch.zeros(size, dtype=torch.float32, device=device)

    def run(self, hidden: Tensor) -> Sampled:
        looks = look_every(self.ids.device)
        for step in range(self.decoder.max_new_tokens):
            tokens = self._choose(hidden, step)
            if step + 1 == self.decoder.max_new_tokens:
                break
            if (step + 1) % looks == 0:
                living = (~self.ended[self.alive]).nonzero().flatten()
                if not len(living):
                    break
                # Where the cache is not trusted to repeat rows, it is not trusted to drop them.
                if self.decoder.share_prompt and len(living) <= COMPACT_AT * len(self.alive):
                    tokens = self._drop(living, tokens)
            hidden = self._advance(tokens)
        longest = int(self.length.max())
        mask = torch.arange(longest, device=self.ids.device) < self.length.unsqueeze(1)
        return Sampled(
            ids=self.ids[:, :longest],
            log_probs=self.log_probs[:, :longest],
            mask=mask,
            truncated=~self.ended,
            kept=self.kept / self.length.clamp(min=1),
        )

    def _choose(self, hidden: Tensor, step: int) -> Tensor:
        """Pick the next token of every row in the batch and record it for the living."""
        decoder, alive = self.decoder, self.alive
        logits = decoder.logits(hidden) / decoder.temperature
        powers, total, normaliser = _softmax(logits)
        kept = torch.ones_like(total)
        weights = powers
        if decoder.filters:
            filtered = decoder.filters(self.history, logits)
            kept = powers.masked_fill(filtered == -torch.inf, 0.0).sum(dim=1) / total
            weights, _, _ = _softmax(filtered)
        if self.draws is None:
            tokens = weights.argmax(dim=-1)
        else:
            tokens = _inverse_cdf(weights, self.draws[alive, step])
        living = ~self.ended[alive]
        chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - normaliser
        self.ids[alive, step] = tokens.where(living, 0)
        self.log_probs[alive, step] = chosen.where(living, 0.0)
        self.kept[alive] += kept.where(living, 0.0)
        self.length[alive] += living
        self.ended[alive] |= self._over(tokens, step)
        if decoder.filters:
            self.history = torch.cat([self.history, tokens.unsqueeze(1)], dim=1)
        return tokens

    def _over(self, tokens: Tensor, step: int) -> Tensor:
        """Which rows end with this token: an end token, or the last of a stop string."""
        over = torch.isin(tokens, self.decoder.ends)
        if self.decoder.stop is not None:
            over |= self.decoder.stop(self.ids[self.alive, : step + 1], None)
        return over

    def _drop(self, keep: Tensor, tokens: Tensor) -> Tensor:
        """Leave only the rows `keep` of the batch."""
        self.cache.batch_select_indices(keep)
        self.alive, self.attention = self.alive[keep], self.attention[keep]
        self.position = self.position[keep]
        if self.decoder.filters:
            self.history = self.history[keep]
        return tokens[keep]

    def _advance(self, tokens: Tensor) -> Tensor:
        self.position = self.position + 1
        self.attention = torch.cat([self.attention, self.attention.new_ones(len(tokens), 1)], dim=1)
        return self.decoder.hidden(
            tokens.unsqueeze(1), self.attention, self.position.unsqueeze(1), self.cache
        )[:, -1]


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(exp(z - peak) [n, v], its sum [n], logsumexp(z) [n]) of logits z, by one exponential."""
    peak = logits.amax(dim=1)
    powers = (logits - peak.unsqueeze(1)).exp()
    total = powers.sum(dim=1)
    return powers, total, peak + total.log()


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """[n] tokens: the first whose cumulative share of the weights [n, v] exceeds the row's uniform.

    Summed in float64, since in float32 the sum over a large vocabulary errs by more than the
    rarest tokens' whole probability; and in two levels, block then token, since running sums in
    float64 over all of it would take longer than everything else here.
    """
    size = weights.shape[1]
    block = min(BLOCK, size)
    blocks = torch.nn.functional.pad(weights, (0, -size % block)).unflatten(1, (-1, block))
    running = blocks.sum(dim=2, dtype=torch.float64).cumsum(dim=1)
    target = uniform.unsqueeze(1) * running[:, -1:]
    index = _first_above(running, target)
    inside = blocks.gather(1, index.unsqueeze(2).expand(-1, -1, block)).squeeze(1).double()
    target = target - (running.gather(1, index) - inside.sum(dim=1, keepdim=True))
    token = _first_above(inside.cumsum(dim=1), target)
    return (index * block + token).squeeze(1)


def _first_above(running: Tensor, target: Tensor) -> Tensor:
    """[n, 1] the first place of each row's running sum above target, of those where it rises."""
    found = torch.searchsorted(running, target.clamp(min=0.0), right=True)
    # Rounding at the very end could step past the last place with any weight.
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    return torch.minimum(found, last)


def filters_for(settings: Any) -> LogitsProcessorList:
    """transformers' own processors, in the order its `generate` applies them."""
    from transformers import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    processors = LogitsProcessorList()
    if settings.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.top_k:
        processors.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        processors.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        processors.append(MinPLogitsWarper(settings.min_p))
    return processors
