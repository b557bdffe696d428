"""Checkpoints: layers computed again in the backward pass, instead of keeping what they computed.

A layer that is computed again must find the cache as it was. So prompts are passed with a cache
whose layers can be run any number of times: those of prompts keep what they are given first, and
those of what follows keep nothing.
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

from groupwise.attention import without_cudnn
from groupwise.errors import UserError
from groupwise_llm.model.copies import Copies


class Checkpoints:
    """What makes each layer of a model compute again, where a gradient is wanted.

    The model's own switch drops the cache, and its layers must be in training mode for it.

    active: whether they do.
    """

    def __init__(self, model: nn.Module, copies: Copies) -> None:
        self.active = True
        self._copies = copies
        for layer in layers_of(model):
            layer.forward = partial(self._forward, layer.forward)

    @contextmanager
    def off(self) -> Iterator[None]:
        """The context in which layers keep what they compute."""
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
        layers, places = [] if cache is None else cache.layers, self._copies.present

        def run(*inputs: Any) -> Any:
            # In the backward pass neither the copies stand in nor has the cache stayed as it was.
            with self._copies.put(places), _as_then(cache, layers), without_cudnn():
                return forward(*inputs, **options)

        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers that a model is a stack of, as transformers marks them, or else its longest list
    of modules. Raises UserError where it has neither."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = _marked(model) or max(lists, key=len, default=[])
    if not layers:
        raise UserError(
            f"policy.gradient_checkpointing: {type(model).__name__} is no stack of layers that "
            f"could be recomputed; set it to false"
        )
    return layers


def _marked(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, GradientCheckpointingLayer):
        return [module]
    return [layer for child in module.children() for layer in _marked(child)]


class PromptCache(DynamicCache):
    """A cache for one pass over prompts, `reorder_cache`, and one over all that follows them."""

    layers: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = _Prompts

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with these prompts alone, which may repeat."""
        self.layers = [_Rest(layer, beam_idx) for layer in self.layers]


class _Prompts(DynamicLayer):
    """Keys and values [n, heads, tokens, width] of prompts, as they are passed first."""

    is_initialized: bool

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.is_initialized = True
            self.keys, self.values = keys, values
        return keys, values


class _Rest(DynamicLayer):
    """What follows prompts: rows of theirs come first, and nothing is kept."""

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
    """The cache with the layers that it had when a layer of the model ran first."""
    if cache is None:
        yield
        return
    present, cache.layers = cache.layers, layers
    try:
        yield
    finally:
        cache.layers = present
