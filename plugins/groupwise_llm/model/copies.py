"""Copies: what passes read in place of the weights that a model holds.

In bf16 that is one copy of every weight, made once per change of weights: no weight is cast while a
pass runs. Gradients arrive, in float32, at the weights that are held. While completions are
sampled, adapted layers are moreover read with their adapters merged (`merging`).
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
"""A module's own table of parameters or of submodules, a key in it, and what stands in there."""


@dataclass(frozen=True)
class Numerics:
    """By which arithmetic a model answers.

    precision: "float32" or "bf16", of all but the head.
    plain_head: whether logits are the output embedding times the last hidden state. The
        likelihood then never holds all of them.
    head: "float32" or "bf16", that of the head's product; as the rest if None.
    """

    precision: str
    plain_head: bool
    head: str | None = None

    @property
    def wide_head(self) -> bool:
        """Whether the head computes in float32 what the rest leaves in bf16."""
        return self.precision == "bf16" and self.head == "float32"


@dataclass(frozen=True)
class _Copy:
    """A copy of a weight as it was at that version of it."""

    weight: Tensor
    version: int
    tensor: Tensor


class Copies:
    """The copies of one model's weights; outside of `standing_in` the model is as it was.

    model: as transformers or peft made it. Weights that are sharded have none: FSDP makes its own.
    lasting: whether copies are kept for as long as a weight is of the same version; what FSDP
        gathers changes without a new one.
    present: what stands in at the moment.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.lasting = model, True
        self.present: Sequence[Place] = ()
        self._copies: dict[tuple[int, torch.dtype], _Copy] = {}
        self._merged: dict[str, tuple[Any, Mapping[str, Tensor]]] = {}

    def tensors(self) -> Iterator[Tensor]:
        """All copies that are held now."""
        yield from (copy.tensor for copy in self._copies.values())
        for _, weights in self._merged.values():
            yield from weights.values()

    @contextmanager
    def standing_in(self, numerics: Numerics, *, merged: bool = False) -> Iterator[None]:
        """The context in which passes read copies; inside another such it changes nothing.

        merged: whether adapted layers answer by one weight, which must not be trained then. Such
        weights are kept, if copies last, until weights change or a pass is made for its gradient.
        """
        if self.present:
            yield
            return
        if torch.is_grad_enabled():
            self._merged = {}
        try:
            # Merged first: of the adapters as they are held.
            places = [*self._merge(numerics)] if merged else []
            places = [*self._copy(numerics), *places]
            with self._wide(numerics), self.put(places):
                yield
        finally:
            if not self.lasting:
                self._copies, self._merged = {}, {}

    @contextmanager
    def put(self, places: Sequence[Place]) -> Iterator[None]:
        """Let this stand in, in place of all that does at the moment."""
        outer, self.present = self.present, places
        before = [(table, key, table[key]) for table, key, _ in places]
        try:
            for table, key, value in places:
                table[key] = value
            yield
        finally:
            for table, key, value in before:
                table[key] = value
            self.present = outer

    def _copy(self, numerics: Numerics) -> list[Place]:
        """One copy of each weight that is held otherwise than it is computed with."""
        wanted = list(self._wanted(numerics))
        weights = {(id(weight), dtype): weight for _, _, weight, dtype in wanted}  # tied ones once
        copies: dict[tuple[int, torch.dtype], _Copy] = {}
        stale: list[tuple[Tensor, Tensor]] = []
        for key, weight in weights.items():
            copy = self._copies.get(key)
            if copy is None or copy.weight is not weight or copy.tensor.device != weight.device:
                copy = _Copy(weight, -1, torch.empty_like(weight, dtype=key[1]).detach())
            if copy.version != weight._version:
                stale.append((copy.tensor, weight.detach()))
            copies[key] = _Copy(weight, weight._version, copy.tensor)
        self._copies = copies
        if stale:
            torch._foreach_copy_([copy for copy, _ in stale], [weight for _, weight in stale])
        read = {key: _passing_on(copy.weight, copy.tensor) for key, copy in copies.items()}
        return [(table, name, read[id(weight), dtype]) for table, name, weight, dtype in wanted]

    def _wanted(
        self, numerics: Numerics
    ) -> Iterator[tuple[dict[str, Any], str, nn.Parameter, torch.dtype]]:
        """Of every weight that is not held as it is computed with: its place, and that dtype."""
        if numerics.precision == "float32":
            return
        causal = merging.causal_of(self.model)
        head = causal.get_output_embeddings()
        of_head = {id(module) for module in head.modules()} if head is not None else set()
        narrow, wide = DTYPES[numerics.precision], DTYPES[numerics.head or numerics.precision]
        for prefix, module in self.model.named_modules():
            own = {key: p for key, p in module._parameters.items() if p is not None}
            # Layers with quantised weights know themselves what they compute in.
            if any(p.element_size() < 2 for p in own.values()):
                continue
            for key, weight in own.items():
                name = f"{prefix}.{key}"
                dtype = wide if id(module) in of_head else narrow
                if (
                    weight.is_floating_point()
                    and weight.dtype != dtype
                    and not isinstance(weight, DTensor)
                    and not _stays_wide(causal, name)
                ):
                    yield module._parameters, key, weight, dtype

    def _merge(self, numerics: Numerics) -> Iterator[Place]:
        """Adapted layers' own, with their adapters merged, in their places."""
        kept: dict[str, tuple[Any, Mapping[str, Tensor]]] = {}
        half = DTYPES[numerics.precision]
        for name, layer in merging.adapted(self.model):
            base = layer.get_base_layer()
            if isinstance(base.weight, DTensor):  # sharded, and not gathered now
                continue
            state = [(id(p), p._version, p.device) for p in layer.parameters()], half
            weights = dict(self._merged[name][1]) if name in self._merged else {}
            if not weights or self._merged[name][0] != state:
                weights = {
                    key: value.to(half if numerics.precision == "bf16" else base.weight.dtype)
                    for key, value in merging.merged(layer).items()
                }
            kept[name] = state, weights
            for key, value in weights.items():
                yield base._parameters, key, value
            parent, _, leaf = name.rpartition(".")
            yield self.model.get_submodule(parent)._modules, leaf, base
        self._merged = kept

    @contextmanager
    def _wide(self, numerics: Numerics) -> Iterator[None]:
        """A head in float32, where the model calls it by itself, is given float32."""
        head = merging.causal_of(self.model).get_output_embeddings()
        if not (numerics.wide_head and not numerics.plain_head) or head is None:
            yield
            return
        hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
        try:
            yield
        finally:
            hook.remove()


class _Through(torch.autograd.Function):
    """A copy whose gradient is passed on to the weight, in the weight's own dtype."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


def _passing_on(weight: Tensor, copy: Tensor) -> Tensor:
    trained = weight.requires_grad and torch.is_grad_enabled()
    return _Through.apply(weight, copy) if trained else copy


def _stays_wide(causal: Any, name: str) -> bool:
    """Whether a model's authors keep this weight in float32 when the model is loaded in bf16."""
    kept = getattr(causal, "_keep_in_fp32_modules_strict", None) or ()
    return any(re.search(part.replace("*", ".*"), name) for part in kept)
