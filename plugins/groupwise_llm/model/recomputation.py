"""Gradient checkpointing: layers are recomputed in the backward pass instead of stored.

A layer that is recomputed needs the cache in the state of its first run. `PromptCache` provides
that: in the pass over prompts a layer stores keys and values once, however often it runs; in the
pass over completions it only reads them and stores nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.kit.attention import without_cudnn
from groupwise.kit.errors import UserError
from groupwise_llm.model.attention import PackedAttention
from groupwise_llm.model.copies import Copies


class Recomputation:
    """Makes each layer of a model recompute in the backward pass.

    transformers' own switch drops the cache and works in training mode only, so it is not used.

    active: False to store activations as usual.
    """

    def __init__(self, model: nn.Module, copies: Copies, attention: PackedAttention) -> None:
        self.active = True
        self._copies, self._attention = copies, attention
        for layer in layers_of(model):
            layer.forward = partial(self._forward, layer.forward)

    @contextmanager
    def off(self) -> Iterator[None]:
        """The context in which layers store their activations."""
        self.active = False
        try:
            yield
        finally:
            self.active = True

    def _forward(self, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        if not (self.active and torch.is_grad_enabled()):
            return forward(*inputs, **options)
        values = (*inputs, *options.values())
        cache = next((value for value in values if isinstance(value, Cache)), None)
        layers, places = [] if cache is None else cache.layers, self._copies.swapped
        layout = self._attention.layout

        def run(*inputs: Any) -> Any:
            # By the backward pass the weights' copies are swapped out, attention is the model's own
            # and the cache has changed.
            attention = self._attention.over(layout)
            with self._copies.swap(places), attention, _as_then(cache, layers), without_cudnn():
                return forward(*inputs, **options)

        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The model's layers as transformers marks them for checkpointing, or else its longest
    ModuleList. Raises UserError where it has neither."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = _marked(model) or max(lists, key=len, default=[])
    if not layers:
        raise UserError(
            f"policy.gradient_checkpointing: {type(model).__name__} has no list of layers that "
            f"could be recomputed; set it to false"
        )
    return layers


def _marked(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, GradientCheckpointingLayer):
        return [module]
    return [layer for child in module.children() for layer in _marked(child)]


class PromptCache(DynamicCache):
    """A cache for one pass over prompts, `reorder_cache`, and one pass over the completions."""

    layers: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = _Prompts

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Give completion i the keys and values of prompt beam_idx[i]; prompts may repeat."""
        self.layers = [_Completions(layer, beam_idx) for layer in self.layers]


class _Prompts(DynamicLayer):
    """Keys and values [n, heads, tokens, width] of prompts, stored by the first call alone."""

    is_initialized: bool

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.is_initialized = True
            self.keys, self.values = keys, values
        return keys, values


class _Completions(DynamicLayer):
    """Completions: the keys and values of their prompts come first, and nothing is stored."""

    def __init__(self, prompts: DynamicLayer, rows: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = prompts.keys, prompts.values, True
        self._rows = rows

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        first = (kept.index_select(0, self._rows) for kept in (self.keys, self.values))
        parts = zip(first, (keys, values), strict=True)
        whole_keys, whole_values = (torch.cat(pair, dim=-2) for pair in parts)
        return whole_keys, whole_values


@contextmanager
def _as_then(cache: Cache | None, layers: list[Any]) -> Iterator[None]:
    """The cache with the layers that it had in the forward pass."""
    if cache is None:
        yield
        return
    present, cache.layers = cache.layers, layers
    try:
        yield
    finally:
        cache.layers = present
