"""Copies: the bf16 weights, and the merged adapters, that passes read instead of a model's own.

In bf16 every weight is copied once per change of the weights, so nothing is cast during a pass.
Gradients reach the model's own weights, in float32. While completions are sampled, adapted layers
are replaced by plain ones with merged weights (`merging`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise_llm.model import merging

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
Place = tuple[dict[str, Any], str, Any]
"""A module's dict of parameters or submodules, a key of it, and the value swapped in there."""


@dataclass(frozen=True)
class Numerics:
    """The precision a model computes in, and how its logits are computed.

    precision: "float32" or "bf16", of all layers but the head.
    plain_head: whether logits are just output embedding @ last hidden state; the likelihood is then
        computed in blocks, without holding all logits.
    head: "float32" or "bf16", precision of the head's product; as `precision` if None.
    """

    precision: str
    plain_head: bool
    head: str | None = None

    @property
    def head_in_float32(self) -> bool:
        """Whether the head computes in float32 on bf16 hidden states."""
        return self.precision == "bf16" and self.head == "float32"


@dataclass(frozen=True)
class _Copy:
    """A copy of a weight, made at this version of it (torch counts in-place changes)."""

    weight: Tensor
    version: int
    tensor: Tensor


class Copies:
    """The copies of one model's weights; outside `swapped_in` the model has its own weights.

    model: a transformers model, or peft's wrapper. Sharded weights are not copied: FSDP casts them.
    reusable: whether a copy is kept until its weight's version changes. False for sharded models:
        weights that FSDP gathers change without a new version.
    swapped: what is swapped in at the moment.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.reusable = model, True
        self.swapped: Sequence[Place] = ()
        self._copies: dict[tuple[int, torch.dtype], _Copy] = {}
        self._merged: dict[str, tuple[Any, Mapping[str, Tensor]]] = {}

    def tensors(self) -> Iterator[Tensor]:
        """All copies held at the moment."""
        yield from (copy.tensor for copy in self._copies.values())
        for _, weights in self._merged.values():
            yield from weights.values()

    @contextmanager
    def swapped_in(self, numerics: Numerics, *, merged: bool = False) -> Iterator[None]:
        """The context in which passes read copies; nested, it has no effect.

        merged: whether adapted layers are replaced by merged weights, for passes without gradients.
        These are kept, if `reusable`, until weights change or a pass with gradients begins.
        """
        if self.swapped:
            yield
            return
        if torch.is_grad_enabled():
            self._merged = {}
        try:
            # Merge first, from the float32 adapters.
            places = [*self._merge(numerics)] if merged else []
            places = [*self._copy(numerics), *places]
            with self._cast_head_inputs(numerics), self.swap(places):
                yield
        finally:
            if not self.reusable:
                self._copies, self._merged = {}, {}

    @contextmanager
    def swap(self, places: Sequence[Place]) -> Iterator[None]:
        """The context in which each (dict, key, value) of `places` is swapped in."""
        outer, self.swapped = self.swapped, places
        before = [(table, key, table[key]) for table, key, _ in places]
        try:
            for table, key, value in places:
                table[key] = value
            yield
        finally:
            for table, key, value in before:
                table[key] = value
            self.swapped = outer

    def _copy(self, numerics: Numerics) -> list[Place]:
        """Copy each weight whose dtype differs from that of the computation."""
        casts = list(self._to_cast(numerics))
        weights = {
            (id(weight), dtype): weight for _, _, weight, dtype in casts
        }  # tied weights once
        copies: dict[tuple[int, torch.dtype], _Copy] = {}
        stale: list[tuple[Tensor, Tensor]] = []
        for key, weight in weights.items():
            copy = self._copies.get(key)
            if copy is None or copy.weight is not weight or copy.tensor.device != weight.device:
                # A parameter, since peft adapts no plain tensors.
                memory = torch.empty_like(weight, dtype=key[1]).detach()
                copy = _Copy(weight, -1, nn.Parameter(memory, requires_grad=False))
            if copy.version != weight._version:
                stale.append((copy.tensor, weight.detach()))
            copies[key] = _Copy(weight, weight._version, copy.tensor)
        self._copies = copies
        if stale:
            torch._foreach_copy_([copy for copy, _ in stale], [weight for _, weight in stale])
        read = {key: _passing_on(copy.weight, copy.tensor) for key, copy in copies.items()}
        return [(table, name, read[id(weight), dtype]) for table, name, weight, dtype in casts]

    def _to_cast(
        self, numerics: Numerics
    ) -> Iterator[tuple[dict[str, Any], str, nn.Parameter, torch.dtype]]:
        """(table, name, weight, dtype) of each weight that must be cast to that dtype."""
        if numerics.precision == "float32":
            return
        causal = merging.causal_of(self.model)
        head = causal.get_output_embeddings()
        of_head = {id(module) for module in head.modules()} if head is not None else set()
        narrow, wide = DTYPES[numerics.precision], DTYPES[numerics.head or numerics.precision]
        for prefix, module in self.model.named_modules():
            own = {key: p for key, p in module._parameters.items() if p is not None}
            # Layers with quantised weights choose the dtype of their computation themselves.
            if any(p.element_size() < 2 for p in own.values()):
                continue
            for key, weight in own.items():
                name = f"{prefix}.{key}"
                dtype = wide if id(module) in of_head else narrow
                if (
                    weight.is_floating_point()
                    and weight.dtype != dtype
                    and not isinstance(weight, DTensor)
                    and not _stays_in_float32(causal, name)
                ):
                    yield module._parameters, key, weight, dtype

    def _merge(self, numerics: Numerics) -> Iterator[Place]:
        """Replace each adapted layer by its base layer with merged weights."""
        kept: dict[str, tuple[Any, Mapping[str, Tensor]]] = {}
        half = DTYPES[numerics.precision]
        for name, layer in merging.adapted(self.model):
            base = layer.get_base_layer()
            own = merging.own_parameters(base)
            # Sharded, and not gathered at the moment.
            if any(isinstance(weight, DTensor) for weight in own.values()):
                continue
            state = [(id(p), p._version, p.device) for p in layer.parameters()], half
            weights = dict(self._merged[name][1]) if name in self._merged else {}
            if not weights or self._merged[name][0] != state:
                weights = {
                    key: value.to(half if numerics.precision == "bf16" else own[key].dtype)
                    for key, value in merging.merged(name, layer).items()
                }
            kept[name] = state, weights
            for key, value in weights.items():
                yield base._parameters, key, value
            parent, _, leaf = name.rpartition(".")
            yield self.model.get_submodule(parent)._modules, leaf, base
        self._merged = kept

    @contextmanager
    def _cast_head_inputs(self, numerics: Numerics) -> Iterator[None]:
        """Cast the inputs of a float32 head to float32, where the model itself calls the head."""
        head = merging.causal_of(self.model).get_output_embeddings()
        if not (numerics.head_in_float32 and not numerics.plain_head) or head is None:
            yield
            return
        hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
        try:
            yield
        finally:
            hook.remove()


class _Through(torch.autograd.Function):
    """A copy whose gradient goes to the weight, in the weight's own dtype."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


def _passing_on(weight: Tensor, copy: Tensor) -> Tensor:
    if weight.requires_grad and torch.is_grad_enabled():
        passed: Tensor = _Through.apply(weight, copy)
        return passed
    return copy


def _stays_in_float32(causal: Any, name: str) -> bool:
    """Whether transformers lists this weight as one that stays float32 in a bf16 model."""
    kept = getattr(causal, "_keep_in_fp32_modules_strict", None) or ()
    return any(re.search(part.replace("*", ".*"), name) for part in kept)
