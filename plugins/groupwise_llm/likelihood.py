"""Log-probs and entropy of chosen tokens from hidden states, without ever holding all logits.

Logits of a micro-batch are the largest tensor of a language model's training by far (8192 tokens
of a 152k vocabulary: 4.6 GiB in float32, several times over). Here a block of tokens meets a block
of the vocabulary, in the forward pass by an online logsumexp, in the backward pass by computing the
block again; the gradient is exact.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TOKENS = 1024
VOCABULARY = 16384


def project(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits [n, v] in float32 of hidden [n, h]; the product is taken in the hidden states' dtype.

    The one place where logits are made, for sampling as for training.
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
    return _ChunkedLikelihood.apply(hidden, weight, bias, tokens, temperature)


def _blocks(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, block: slice, temperature: float
) -> Tensor:
    part = None if bias is None else bias[block]
    return project(hidden, weight[block], part) / temperature


class _ChunkedLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        log_probs = hidden.new_empty(len(hidden), dtype=torch.float32)
        entropy, normaliser = torch.empty_like(log_probs), torch.empty_like(log_probs)
        for rows in _blocks(len(hidden), TOKENS):
            chosen, total, mean = _online(hidden[rows], weight, bias, tokens[rows], temperature)
            log_probs[rows] = chosen - total
            entropy[rows] = total - mean
            normaliser[rows] = total
        ctx.save_for_backward(hidden, weight, bias, tokens, normaliser, entropy)
        ctx.temperature = temperature
        return log_probs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs: Tensor, grad_entropy: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, tokens, normaliser, entropy = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias else None
        for rows in _blocks(len(hidden), TOKENS):
            for block in _blocks(len(weight), VOCABULARY):
                grad = _grad_logits(
                    _logits(hidden[rows], weight, bias, block, ctx.temperature),
                    normaliser[rows],
                    entropy[rows],
                    grad_log_probs[rows],
                    grad_entropy[rows],
                )
                _scatter_chosen(grad, tokens[rows], grad_log_probs[rows], block)
                grad = (grad / ctx.temperature).to(hidden.dtype)
                if grad_hidden is not None:
                    grad_hidden[rows] += (grad @ weight[block].to(hidden.dtype)).float()
                if grad_weight is not None:
                    grad_weight[block] += (grad.T @ hidden[rows]).float()
                if grad_bias is not None:
                    grad_bias[block] += grad.float().sum(dim=0)
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
        )


def _online(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each token's logits z: z[token], logsumexp(z), and the softmax's mean of z; each [n]."""
    size = len(hidden)
    largest = hidden.new_full((size,), -torch.inf, dtype=torch.float32)
    total, weighted = torch.zeros_like(largest), torch.zeros_like(largest)
    chosen = torch.zeros_like(largest)
    for block in _blocks(len(weight), VOCABULARY):
        logits = _logits(hidden, weight, bias, block, temperature)
        inside = (tokens >= block.start) & (tokens < block.stop)
        local = (tokens - block.start).clamp(0, logits.shape[1] - 1)
        chosen = torch.where(inside, logits.gather(1, local.unsqueeze(1)).squeeze(1), chosen)
        peak = torch.maximum(largest, logits.amax(dim=1))
        shrink = (largest - peak).exp()
        powers = (logits - peak.unsqueeze(1)).exp()
        total = total * shrink + powers.sum(dim=1)
        weighted = weighted * shrink + (powers * logits).sum(dim=1)
        largest = peak
    return chosen, largest + total.log(), weighted / total


def _grad_logits(
    logits: Tensor,
    normaliser: Tensor,
    entropy: Tensor,
    grad_log_probs: Tensor,
    grad_entropy: Tensor,
) -> Tensor:
    """d/dz of both outputs but for the chosen token's own 1.

    d log p_token / dz = onehot - p;   dH / dz = -p (log p + H).
    """
    log_p = logits - normaliser.unsqueeze(1)
    slope = grad_log_probs.unsqueeze(1) + grad_entropy.unsqueeze(1) * (log_p + entropy.unsqueeze(1))
    return -log_p.exp() * slope


def _scatter_chosen(grad: Tensor, tokens: Tensor, grad_log_probs: Tensor, block: slice) -> None:
    """Add the onehot part where a row's token lies in this block of the vocabulary."""
    inside = (tokens >= block.start) & (tokens < block.stop)
    local = (tokens - block.start).clamp(0, grad.shape[1] - 1)
    grad.scatter_add_(1, local.unsqueeze(1), grad_log_probs.where(inside, 0.0).unsqueeze(1))
