"""Log-probs and entropy of chosen tokens from hidden states, without ever holding all logits.

The logits of a micro-batch are by far the largest tensor in training a language model (8192 tokens
x 152k vocabulary: 4.6 GiB in float32, several times over). Here they are computed block by block
(tokens x vocabulary): an online logsumexp in the forward pass, each block recomputed in the
backward pass, unless it is one of the few that a CPU keeps. The gradient is exact.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

TOKENS = 1024
VOCABULARY = 16384
"""The sides of a block on an accelerator; a smaller block would leave it idle."""
CACHED = (256, 1024)
"""The same on a CPU: small enough that element-wise steps stay in its cache. Through main memory
they would take as long as the matrix product."""

KEPT = 2**28
"""Bytes of the first blocks of logits that a CPU keeps: of a small model all, which spares one of
four products. On an accelerator memory is scarcer than products."""

LEAST = -1e30
"""The logit of a token that the bias excludes: finite, also when divided by a temperature."""


def project(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits [n, v] in float32 of hidden [n, h]; the product is taken in the hidden states' dtype.

    Sampling and training both compute logits here, and only here.
    """
    logits = torch.nn.functional.linear(
        hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
    )
    return logits.float()


def log_probs_and_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """log softmax(logits / temperature)[token] and the entropy of that softmax, in nats.

    hidden [n, h]; weight [v, h]; bias [v] or None; tokens [n] int64 -> two [n] float32, with exact
    gradients for hidden, weight and bias.
    """
    room = KEPT if torch.is_grad_enabled() and hidden.device.type == "cpu" else 0
    return _ChunkedLikelihood.apply(hidden, weight, bias, tokens, temperature, room)


class _Head:
    """The product that gives logits, block by block."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float
    ) -> None:
        self.hidden, self.weight = hidden, weight
        # A bias of -inf excludes a token; in the entropy, -inf times probability 0 would be NaN.
        self.bias = None if bias is None else bias.clamp(min=LEAST)
        self.temperature = temperature

    def blocks(self, kept: Sequence[Tensor] = ()) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """(rows, part of the vocabulary, its weights in the hidden states' dtype, logits).

        kept: the logits [rows, part] of the first blocks. A weight is cast once for all rows.
        """
        first = iter(kept)
        tokens, vocabulary = CACHED
        if self.hidden.device.type != "cpu":
            tokens, vocabulary = TOKENS, VOCABULARY
        for part in _cut(len(self.weight), vocabulary):
            weight = self.weight[part].to(self.hidden.dtype)
            bias = None if self.bias is None else self.bias[part]
            for rows in _cut(len(self.hidden), tokens):
                logits = next(first, None)
                if logits is None:
                    logits = project(self.hidden[rows], weight, bias)
                    if self.temperature != 1.0:
                        logits /= self.temperature
                yield rows, part, weight, logits


def _cut(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


class _ChunkedLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        room: int,
    ) -> tuple[Tensor, Tensor]:
        state, ctx.kept = _Online(tokens), []
        for rows, part, _, logits in _Head(hidden, weight, bias, temperature).blocks():
            state.see(rows, part, logits)
            room -= logits.nbytes
            if room >= 0:
                ctx.kept.append(logits)
        normaliser = state.largest + state.total.log()
        entropy = normaliser - state.weighted / state.total
        ctx.save_for_backward(hidden, weight, bias, tokens, normaliser, entropy)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)  # most losses do not use the entropy
        return state.chosen - normaliser, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, bias, tokens, normaliser, entropy = ctx.saved_tensors
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(normaliser)
        sums = [
            torch.zeros_like(x, dtype=torch.float32) if needed else None
            for x, needed in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        ]
        grad_hidden, grad_weight, grad_bias = sums
        head = _Head(hidden, weight, bias, ctx.temperature)
        for rows, part, block, logits in head.blocks(ctx.kept):
            # d log p_token / dz = onehot - p;   dH / dz = -p (log p + H);   the onehot comes below.
            log_p = logits - normaliser[rows].unsqueeze(1)
            slope = grad_log_probs[rows].unsqueeze(1)
            if grad_entropy is not None:
                shift = log_p + entropy[rows].unsqueeze(1)
                slope = shift.mul_(grad_entropy[rows].unsqueeze(1)).add_(slope)
            grad = log_p.exp_().mul_(slope / -ctx.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                _add_product(grad_hidden[rows], grad, block)
            if grad_weight is not None:
                _add_product(grad_weight[part], grad.T, hidden[rows])
            if grad_bias is not None:
                grad_bias[part] += grad.sum(dim=0, dtype=torch.float32)
        slope = (grad_log_probs / ctx.temperature).unsqueeze(1)
        if grad_hidden is not None:
            grad_hidden += slope * weight[tokens]
        if grad_weight is not None:
            grad_weight.index_add_(0, tokens, slope * hidden)
        if grad_bias is not None:
            grad_bias.index_add_(0, tokens, slope.squeeze(1))
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )


class _Online:
    """Running sums over the blocks of the logits z, each [n]: largest = max z, total = sum exp(z -
    largest), weighted = sum z exp(z - largest), chosen = z[token]."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        size = (len(tokens),)
        self.largest = tokens.new_full(size, -torch.inf, dtype=torch.float32)
        self.total, self.weighted, self.chosen = self.largest.new_zeros(3, *size)

    def see(self, rows: slice, part: slice, logits: Tensor) -> None:
        """Add the logits of these rows and this part of the vocabulary."""
        tokens = self.tokens[rows]
        inside = (tokens >= part.start) & (tokens < part.stop)
        local = (tokens - part.start).clamp(0, logits.shape[1] - 1)
        chosen = logits.gather(1, local.unsqueeze(1)).squeeze(1)
        self.chosen[rows] = chosen.where(inside, self.chosen[rows])
        peak = torch.maximum(self.largest[rows], logits.amax(dim=1))
        shrink = (self.largest[rows] - peak).exp_()
        powers = (logits - peak.unsqueeze(1)).exp_()
        self.total[rows].mul_(shrink).add_(powers.sum(dim=1))
        self.weighted[rows].mul_(shrink).add_(powers.mul_(logits).sum(dim=1))
        self.largest[rows] = peak


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right; summed in float32, in one step where all tensors are float32."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
