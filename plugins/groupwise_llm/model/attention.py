"""Attention of packed rows: prompts and all their completions, one after the other in one row.

Every sequence attends to itself causally, and the tokens of a completion to all tokens of its
prompt. No mask is made, nothing is padded, and neither a prompt's keys are repeated for its
completions nor keys for the query heads that share them. The two results of a completion's token
are joined by the logsumexps of their scores.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import causal_mask_function

from groupwise_llm.model.kernels import Spans, kernel_of

NAME = "groupwise_packed"
"""The name under which transformers finds this attention."""
WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "hidden_states",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "use_cache",
    }
)
"""What models hand on to every kind of attention, and plain causal attention does not depend on."""


@dataclass(frozen=True)
class Layout:
    """Where the sequences of a row of N tokens are: all prompts, then the completions of each.

    own: each sequence attends to itself, causally.
    shared: the completions of a prompt, from token `start` on, attend to it; prompts that have none
        come last, after token `stop`. None where no prompt has one.
    """

    own: Spans
    shared: Spans | None
    start: int
    stop: int

    @staticmethod
    def of(
        prompts: Sequence[int], completions: Sequence[Sequence[int]], device: torch.device
    ) -> "Layout":
        """prompts: tokens of each; completions: tokens of those of each prompt, in order."""
        lengths = [*prompts, *filter(None, chain.from_iterable(completions))]
        pairs = [
            (sum(own), keys) for own, keys in zip(completions, prompts, strict=True) if any(own)
        ]
        return Layout(
            own=Spans.of([(length, length) for length in lengths], causal=True, device=device),
            shared=Spans.of(pairs, causal=False, device=device) if pairs else None,
            start=sum(prompts),
            stop=sum(keys for _, keys in pairs),
        )


class PackedAttention:
    """Switches the attention of one model's layers between its own and that of packed rows."""

    def __init__(self, model: nn.Module) -> None:
        configs = [getattr(module, "config", None) for module in model.modules()]
        known = {id(config): config for config in configs if isinstance(config, PreTrainedConfig)}
        self._configs = list(known.values())
        self.layout: Layout | None = None

    @contextmanager
    def over(self, layout: Layout | None) -> Iterator[None]:
        """The context, for the whole process, in which layers take a row of this layout; with None
        it has no effect. Passes raise NotImplementedError where attention is not plainly causal."""
        if layout is None:
            yield
            return
        before = [config._attn_implementation_internal for config in self._configs]
        AttentionInterface.register(NAME, partial(_attend, layout))
        outer, self.layout = self.layout, layout
        try:
            for config in self._configs:
                config._attn_implementation_internal = NAME
            yield
        finally:
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation_internal = name
            self.layout = outer


def _attend(
    layout: Layout,
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of query [1, H, N, d] to key and value [1, K, N, d]; returns [1, N, H, d].

    Raises NotImplementedError for whatever else than scaled scores a model asks for.
    """
    foreign = [n for n, x in options.items() if x is not None and n not in WITHOUT_EFFECT]
    if foreign or attention_mask is not None or dropout or options.get("is_causal") is False:
        raise NotImplementedError(f"attention with {', '.join(foreign) or 'a mask or dropout'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    return attention(q, k, v, layout, scale).unsqueeze(0), None


def attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float) -> Tensor:
    """Attention [N, H, d] of q [N, H, d] to k and v [N, K, d]; H is a multiple of K."""
    output: Tensor = _Packed.apply(q, k, v, layout, scale)
    return output


def _refuse_masks(*, mask_function: Any, **_: Any) -> None:
    """The mask of packed rows: none. Raises NotImplementedError for windows, blocks and the like.

    A probe of few tokens would not notice these.
    """
    if mask_function is not causal_mask_function:
        raise NotImplementedError("attention with a window or another mask")


AttentionMaskInterface.register(NAME, _refuse_masks)


class _Packed(torch.autograd.Function):
    """`attention`, as an operation of autograd.

    Kernels return the logsumexp L of scores S but take no gradient for it, and none is needed. The
    gradient of attention is dS = P * (dP - D) with P = exp(S - L) and D = rowsum(dO * O)
    (FlashAttention-2, arXiv 2307.08691, algorithm 2). It is the same for each key; so a kernel that
    is given the joint O and L returns the joint attention's gradients for the keys that it has.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float
    ) -> Tensor:
        kernel, start, stop = kernel_of(q), layout.start, layout.stop
        out, lse = kernel.forward(q, k, v, layout.own, scale)
        if layout.shared is not None:
            other, its = kernel.forward(q[start:], k[:stop], v[:stop], layout.shared, scale)
            joint = torch.logaddexp(lse[start:], its)
            share = (its - joint).exp_().unsqueeze(-1)
            out[start:] = torch.lerp(out[start:].float(), other.float(), share)
            lse[start:] = joint
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.kernel, ctx.layout, ctx.scale = kernel, layout, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        grads = ctx.kernel.backward(grad, (q, k, v, out, lse), layout.own, scale)
        if layout.shared is not None:
            start, stop = layout.start, layout.stop
            part = (q[start:], k[:stop], v[:stop], out[start:], lse[start:])
            more = ctx.kernel.backward(grad[start:], part, layout.shared, scale)
            places = (grads[0][start:], grads[1][:stop], grads[2][:stop])
            for place, addition in zip(places, more, strict=True):
                place.add_(addition)
        return *grads, None, None
