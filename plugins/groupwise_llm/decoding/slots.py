"""Slots: the rows of a batch that are being decoded, and what has been drawn for each."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from groupwise_llm.decoding import drawing
from groupwise_llm.decoding.decoder import Decoder
from groupwise_llm.decoding.work import Work
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.training.passes import left_padded


@dataclass(frozen=True, kw_only=True)
class Slots:
    """n rows, of which each has drawn `length` tokens.

    `choose` writes into these tensors and reads no value on the host, so that it can be captured as
    a CUDA graph. A row that has ended takes further tokens without effect.

    rows: [n] their numbers in the work. tokens: [n] drawn last. text: [n, start + T + 1] the
    context, padded on the left, and the T tokens that may be drawn. log_probs: [n, T + 1]. The last
    column takes what is written for rows that have drawn T tokens. draws: [n, T + 1] uniforms; None
    for greedy. limits, length: [n] tokens. kept, entropy: [n] sums over the tokens drawn, see
    `Sampled`. over: [n] whether no further token counts, stopped: since an end token or a stop
    string was drawn or the logits were not finite, broken: the last of these.
    """

    rows: Tensor
    start: int
    tokens: Tensor
    text: Tensor
    log_probs: Tensor
    draws: Tensor | None
    limits: Tensor
    length: Tensor
    kept: Tensor
    entropy: Tensor
    over: Tensor
    stopped: Tensor
    broken: Tensor

    @staticmethod
    def of(work: Work, rows: Sequence[int], model: CausalModel) -> "Slots":
        """Slots for the rows of this work; rows: the numbers by which they are known."""
        size, most, device = len(rows), max(work.limits), model.device
        ids, attention, _ = left_padded(work.contexts, device)
        ids = model.as_text(ids)
        # The repetition penalty reads the whole text. Where there is no token yet, or none at all,
        # it has the context's last token, which is penalised anyway.
        last = ids[:, -1:]
        contexts = torch.where(attention.bool(), ids, last)
        text = torch.cat([contexts, last.expand(-1, most + 1)], dim=1)
        copies = torch.tensor([len(own) for own in work.rows], device=device)
        over, stopped, broken = torch.zeros(3, size, dtype=torch.bool, device=device)
        kept, entropy = torch.zeros(2, size, dtype=torch.float32, device=device)
        tokens, length = torch.zeros(2, size, dtype=torch.int64, device=device)
        draws = work.draws
        if draws is not None:  # a negative padding cuts
            draws = pad(draws, (0, most + 1 - draws.shape[1])).to(drawing.place(device))
        return Slots(
            rows=torch.tensor(rows, device=device),
            start=ids.shape[1],
            tokens=tokens,
            text=text.repeat_interleave(copies, 0),
            log_probs=torch.zeros(size, most + 1, dtype=torch.float32, device=device),
            draws=draws,
            limits=torch.tensor(work.limits, device=device),
            length=length,
            kept=kept,
            entropy=entropy,
            over=over,
            stopped=stopped,
            broken=broken,
        )

    @property
    def ids(self) -> Tensor:
        """[n, T] tokens drawn; arbitrary after each row's length."""
        return self.text[:, self.start : -1]

    def select(self, rows: Tensor) -> "Slots":
        """These rows [m] of them, in tensors of their own."""
        tensors: dict[str, Any] = {
            field.name: value[rows.to(value.device)]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)

    def beside(self, other: "Slots") -> "Slots":
        """These rows and others, in tensors of their own."""
        start, most = (max(own, its) for own, its in zip(self._size, other._size, strict=True))
        both = [own._widened(start, most) for own in (self, other)]
        tensors: dict[str, Any] = {
            field.name: torch.cat([getattr(own, field.name) for own in both])
            for field in fields(self)
            if isinstance(getattr(self, field.name), Tensor)
        }
        return replace(both[0], **tensors)

    @property
    def _size(self) -> tuple[int, int]:
        """(start, T)"""
        return self.start, self.log_probs.shape[1] - 1

    def _widened(self, start: int, most: int) -> "Slots":
        """With so many columns before what is drawn, and for it; new ones have tokens of the
        text, as other columns that are not used."""
        first, rest = self.text[:, :1], self.text[:, -1:]
        left, right = start - self.start, most - self._size[1]
        return replace(
            self,
            start=start,
            text=torch.cat([first.expand(-1, left), self.text, rest.expand(-1, right)], dim=1),
            log_probs=pad(self.log_probs, (0, right)),
            draws=None if self.draws is None else pad(self.draws, (0, right)),
        )

    def choose(self, decoder: Decoder, raw: Tensor) -> None:
        """Draw the next token of every row from logits [n, v]; it counts where a row goes on."""
        logits = raw if decoder.temperature == 1.0 else raw / decoder.temperature
        powers, sums, normaliser = drawing.softmax(logits)
        kept, weights, drawn = torch.ones_like(normaliser), powers, sums
        if decoder.filters or decoder.sampling_temperature != decoder.temperature:
            weights, drawn, _ = drawing.softmax(
                decoder.filters(self.text, raw / decoder.sampling_temperature)
            )
            kept = drawing.overlap((powers, sums), (weights, drawn))
        place = self.length.unsqueeze(1)
        if self.draws is None:
            tokens = weights.argmax(dim=-1)
        else:
            uniform = self.draws.gather(1, place.to(self.draws.device)).squeeze(1)
            tokens = drawing.inverse_cdf(weights, drawn, uniform)
        chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - normaliser
        entropy = drawing.entropy(logits, powers, sums, normaliser)
        # A finite normaliser means that no logit is NaN or +infinity, and not all are -infinity.
        broken = ~(normaliser.isfinite() | self.over)
        living = ~(self.over | broken)
        self.tokens.copy_(tokens)
        self.text.scatter_(1, self.start + place, tokens.unsqueeze(1))
        self.log_probs.scatter_(1, place, chosen.where(living, 0.0).unsqueeze(1))
        self.kept.add_(kept.where(living, 0.0))
        self.entropy.add_(entropy.where(living, 0.0))
        self.length.add_(living)
        self.broken.logical_or_(broken)
        self.stopped.logical_or_(broken | (self._stops(decoder) & living))
        self.over.logical_or_(self.stopped | (self.length >= self.limits))

    def _stops(self, decoder: Decoder) -> Tensor:
        """Which rows end with their last token: an end token, or the last of a stop string."""
        ends = (self.tokens.unsqueeze(1) == decoder.ends).any(dim=1)
        if decoder.stop is None:
            return ends
        width = min(decoder.stop.maximum_token_len, self.ids.shape[1])
        last = torch.arange(-width, 0, device=ends.device) + self.length.unsqueeze(1)
        ids = self.text.gather(1, self.start + last.clamp(min=0))
        # Where less has been drawn, a number that is no token, and so part of no string.
        ids = ids.where(last >= 0, torch.iinfo(ids.dtype).max)
        return ends | decoder.stop(ids, None)
