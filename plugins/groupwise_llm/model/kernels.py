"""Kernels: torch's flash attention over sequences that lie one after the other, with logsumexps.

torch's public functions return no logsumexp, or take no other in the backward pass, so these call
the operations below them. Where one is missing or takes other arguments, probes notice it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Protocol

import torch
from torch import Tensor

aten = torch.ops.aten
Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""q [n, H, d], k and v [m, K, d], out [n, H, d] and lse [n, H]."""
Gradients = tuple[Tensor, Tensor, Tensor]
"""Of q, k and v, in their shapes."""


@dataclass(frozen=True)
class Spans:
    """Pairs of sequences, one after the other in n queries and in m keys.

    lengths: queries and keys of each pair; causal: whether query i attends to keys 0 to i, or to
        all of its pair; ends: [2, pairs + 1] int32 on the device, 0 and the ends of queries and of
        keys, for kernels that need them there.
    """

    lengths: Sequence[tuple[int, int]]
    causal: bool
    ends: Tensor | None

    @staticmethod
    def of(lengths: Sequence[tuple[int, int]], *, causal: bool, device: torch.device) -> "Spans":
        ends = [[0, *accumulate(side)] for side in zip(*lengths, strict=True)]
        on_device = None
        if device.type != "cpu":
            on_device = torch.tensor(ends, dtype=torch.int32).to(device)
        return Spans(lengths, causal, on_device)

    @property
    def placed(self) -> tuple[Tensor, Tensor]:
        assert self.ends is not None
        return self.ends[0], self.ends[1]

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """The pair [n] of each query, and its place [n] in the pair."""
        starts, total = self.placed[0], sum(queries for queries, _ in self.lengths)
        pairs = torch.arange(len(self.lengths), device=starts.device)
        pair = pairs.repeat_interleave(starts.diff(), output_size=total)
        return pair, torch.arange(total, device=starts.device) - starts[pair]

    @property
    def longest(self) -> tuple[int, int]:
        queries, keys = zip(*self.lengths, strict=True)
        return max(queries), max(keys)


class Kernel(Protocol):
    """Softmax attention of H query heads to K heads of keys, H a multiple of K, by spans."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float
    ) -> tuple[Tensor, Tensor]:
        """out [n, H, d] and lse [n, H] float32, the logsumexp of each query's scaled scores."""

    def backward(self, grad: Tensor, saved: Saved, spans: Spans, scale: float) -> Gradients: ...


def kernel_of(q: Tensor) -> Kernel:
    """The kernel for the queries' device and dtype. Raises NotImplementedError if there is none."""
    if q.device.type == "cpu":
        return OnCpu()
    if q.device.type == "cuda":
        return Flash() if q.element_size() == 2 else Efficient()
    raise NotImplementedError(f"packed attention on {q.device.type}")


class OnCpu:
    """Each run of pairs of equal lengths is a batch."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)
        for own, (keys, values) in _batches(spans, (q, out, lse.unsqueeze(-1)), (k, v)):
            queries, place, sums = own
            result, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(
                queries, _for(queries, keys), _for(queries, values), 0.0, spans.causal, scale=scale
            )
            place.copy_(result)
            sums.copy_(logsumexp.unsqueeze(-1))
        return out, lse

    def backward(self, grad: Tensor, saved: Saved, spans: Spans, scale: float) -> Gradients:
        q, k, v, out, lse = saved
        slopes = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        of_queries = (grad, q, out, lse.unsqueeze(-1), slopes[0])
        for own, theirs in _batches(spans, of_queries, (k, v, *slopes[1:])):
            upstream, queries, result, sums, dq = own
            keys, values, dk, dv = theirs
            parts = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                upstream,
                queries,
                _for(queries, keys),
                _for(queries, values),
                result,
                sums.squeeze(-1),
                0.0,
                spans.causal,
                scale=scale,
            )
            for place, part in zip((dq, dk, dv), parts, strict=True):
                place.copy_(_of(place, part, dim=1))
        return slopes


class Efficient:
    """torch's memory-efficient kernel, for float32 on a GPU, one head of keys after the other."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float
    ) -> tuple[Tensor, Tensor]:
        results = []
        for queries, keys, values in zip(
            *(_by_head(x, k.shape[1]) for x in (q, k, v)), strict=True
        ):
            inputs = (queries, _for(queries, keys, dim=2), _for(queries, values, dim=2), None)
            result, padded, *_ = aten._efficient_attention_forward(
                *inputs, *spans.placed, *spans.longest, 0.0, int(spans.causal), True, scale=scale
            )
            pair, place = spans.places
            results.append((result.squeeze(0), padded[pair, :, place]))
        out, lse = (torch.cat(parts, dim=1) for parts in zip(*results, strict=True))
        return out, lse

    def backward(self, grad: Tensor, saved: Saved, spans: Spans, scale: float) -> Gradients:
        q, k, v, out, lse = saved
        pair, place = spans.places
        room = -(-spans.longest[0] // 32) * 32  # as the kernel aligns it
        unused = torch.zeros((), dtype=torch.int64, device=q.device)
        results = []
        tensors = (_by_head(x, k.shape[1]) for x in (grad, q, k, v, out, lse.unsqueeze(-1)))
        for upstream, queries, keys, values, result, sums in zip(*tensors, strict=True):
            padded = lse.new_full((len(spans.lengths), queries.shape[2], room), torch.inf)
            padded[pair, :, place] = sums[0, :, :, 0]
            inputs = (queries, _for(queries, keys, dim=2), _for(queries, values, dim=2), None)
            ends = (*spans.placed, *spans.longest)
            rest = (padded, 0.0, unused, unused, int(spans.causal), False)
            *parts, _ = aten._efficient_attention_backward(
                upstream, *inputs, result, *ends, *rest, scale=scale
            )
            whole = zip((queries, keys, values), parts, strict=True)
            results.append([_of(own, part, dim=2).squeeze(0) for own, part in whole])
        dq, dk, dv = (torch.cat(parts, dim=1) for parts in zip(*results, strict=True))
        return dq, dk, dv


class Flash:
    """torch's FlashAttention-2, for half precision on a GPU; it groups heads itself."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse, *_ = aten._flash_attention_forward(
            q, k, v, *spans.placed, *spans.longest, 0.0, spans.causal, False, scale=scale
        )
        return out, lse.T.contiguous()

    def backward(self, grad: Tensor, saved: Saved, spans: Spans, scale: float) -> Gradients:
        *states, lse = saved
        q = states[0]
        unused = q.new_zeros(2, dtype=torch.uint64), q.new_empty(0)
        ends = (*spans.placed, *spans.longest)
        dq, dk, dv = aten._flash_attention_backward(
            grad.contiguous(),
            *states,
            lse.T.contiguous(),
            *ends,
            0.0,
            spans.causal,
            *unused,
            scale=scale,
        )
        return dq, dk, dv


def _batches(
    spans: Spans, of_queries: Sequence[Tensor], of_keys: Sequence[Tensor]
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Views [b, heads, tokens, d] of tensors [n, H, d] and [m, K, d], from batch to batch.

    Where query heads share keys, a batch has those of one head of keys, or one pair of all.
    """
    grouped = of_queries[0].shape[1] != of_keys[0].shape[1]
    heads = of_keys[0].shape[1] if grouped else 1
    first = start = 0
    for (queries, keys), run in groupby(spans.lengths):
        count = len(list(run))
        stops = first + count * queries, start + count * keys
        own = [_heads(x[first : stops[0]], count, heads) for x in of_queries]
        theirs = [_heads(x[start : stops[1]], count, heads) for x in of_keys]
        for left, right in zip(zip(*own, strict=True), zip(*theirs, strict=True), strict=True):
            yield list(left), list(right)
        first, start = stops


def _heads(x: Tensor, count: int, heads: int) -> Sequence[Tensor]:
    """Views [b, G, tokens, d] of [count * tokens, heads * G, d]."""
    x = x.unflatten(1, (heads, -1)).unflatten(0, (count, -1)).permute(0, 2, 3, 1, 4)
    return [x[0]] if count == 1 else x.unbind(1)


def _by_head(x: Tensor, heads: int) -> Sequence[Tensor]:
    """Views [1, n, G, d] of [n, heads * G, d]."""
    return x.unsqueeze(0).unflatten(2, (heads, -1)).unbind(2)


def _for(queries: Tensor, keys: Tensor, dim: int = 1) -> Tensor:
    """The keys for each of these query heads, without a copy."""
    sizes = [-1] * 4
    sizes[dim] = queries.shape[dim]
    return keys.expand(sizes)


def _of(whole: Tensor, part: Tensor, dim: int) -> Tensor:
    """The gradient of what `_for` has expanded."""
    return part if part.shape == whole.shape else part.sum(dim, keepdim=True)
