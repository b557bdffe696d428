"""Counting the bytes that a model's own code saves, by running it on fake tensors without data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from groupwise_llm.model import modes
from groupwise_llm.model.attention import Layout, PackedAttention
from groupwise_llm.model.causal import CausalModel, Hidden, Run
from groupwise_llm.model.copies import Numerics
from groupwise_llm.probing.trial import TOLERANCE
from groupwise_llm.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A micro-batch: prompts of `prompt` tokens, and rows of completions of `completion` tokens."""

    prompts: int
    prompt: int
    rows: int
    completion: int


def saved(model: CausalModel, numerics: Numerics, shape: Shape, *, head: bool = True) -> int:
    """Bytes that a micro-batch saves for the backward pass, without weights and their copies.

    head: whether the pass goes on to log-probs, or ends with hidden states. As training does, it
    packs the sequences in one row, where the model's attention allows it.
    """
    try:
        run: Run = partial(_packed, shape=shape, attention=model.packed_attention)
        return _saved_by(run, model, numerics, shape, head=head)
    except Exception:
        run = partial(_cached, shape=shape, cache=model.new_prompt_cache())
        return _saved_by(run, model, numerics, shape, head=head)


def _saved_by(run: Run, model: CausalModel, numerics: Numerics, shape: Shape, *, head: bool) -> int:
    def forward() -> Any:
        if not head:
            return model.hidden(run, replace(numerics, plain_head=True))
        tokens = _ids(shape.rows, shape.completion).flatten()
        return model(run, numerics, tokens, temperature=1.0)

    return saved_bytes(forward, model)


def saved_bytes(forward: Callable[[], Any], model: CausalModel) -> int:
    """Bytes that a pass saves for the backward pass, without weights and their copies."""
    sizes: dict[int, int] = {}
    alive = []  # the id of a freed storage could be reused

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        answers = forward()
    own = (*model.parameters(), *model.buffers(), *model.copies.tensors())
    for tensor in own:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    del answers
    return sum(sizes.values())


class _Hidden(BaseModelOutput):
    """The layers' output, with None for any other field that a model may pass on."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def logits_are_the_product(model: CausalModel) -> bool:
    """Whether logits are output embedding @ hidden state and nothing more (no cap, no scale).

    Runs the model's own code on random hidden states with a small random head, the layers replaced.
    `probes` checks the same with the loaded model.
    """
    causal, head = model.causal, model.causal.get_output_embeddings()
    layers = (causal.base_model, causal.get_decoder())  # OPT calls the second directly
    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        # Logits with a standard deviation of 10 make a cap or scale visible.
        hidden = 10 * torch.randn(1, 8, head.in_features)
        small = nn.Linear(head.in_features, 64, bias=head.bias is not None)
        small.weight.normal_(std=head.in_features**-0.5)
        causal.set_output_embeddings(small)
        for part in layers:
            part.forward = lambda *_, **__: _Hidden(last_hidden_state=hidden)
        try:
            logits = causal(input_ids=_ids(1, 8), use_cache=False).logits
        finally:
            for part in layers:
                vars(part).pop("forward", None)
            causal.set_output_embeddings(head)
        gap = logits.float().log_softmax(-1) - small(hidden).log_softmax(-1)
        return bool(gap.abs().max() <= TOLERANCE[1])


def cached(model: CausalModel, numerics: Numerics, tokens: int) -> int:
    """Bytes of the KV cache of one row with this many tokens."""
    cache = model.new_cache()
    with torch.no_grad():
        model(lambda hidden: hidden(_ids(1, tokens), cache=cache, keep=1)[:, -1], numerics)
    states = [value for layer in cache.layers for value in _tensors(vars(layer))]
    return sum(state.nbytes for state in states if state.ndim > 1)


def _packed(hidden: Hidden, shape: Shape, attention: PackedAttention) -> Tensor:
    """As `passes.packed`, for prompts of equal length and completions of equal length."""
    prompts, length = [shape.prompt] * shape.prompts, shape.completion - 1
    rows = [len(range(first, shape.rows, shape.prompts)) for first in range(shape.prompts)]
    ids = _ids(1, sum(prompts) + shape.rows * length)
    layout = Layout.of(prompts, [[length] * count for count in rows], ids.device)
    with attention.over(layout):
        return hidden(
            ids,
            attention=torch.ones_like(ids),
            positions=torch.arange(ids.shape[1]).unsqueeze(0),
            keep=torch.zeros(shape.rows * shape.completion, dtype=torch.int64),
        ).squeeze(0)


def _cached(hidden: Hidden, shape: Shape, cache: DynamicCache) -> Tensor:
    """As `passes.cached`, for prompts of equal length and completions of equal length."""
    mask = torch.ones(shape.prompts, shape.prompt, dtype=torch.int64)
    positions = torch.arange(shape.prompt).expand(shape.prompts, -1)
    ids = _ids(shape.prompts, shape.prompt)
    which = torch.arange(shape.rows) % shape.prompts
    first = hidden(ids, attention=mask, positions=positions, cache=cache, keep=1)[which]
    cache.reorder_cache(which)
    length = shape.prompt + shape.completion - 1
    rest = hidden(
        _ids(shape.rows, shape.completion - 1),
        attention=torch.ones(shape.rows, length, dtype=torch.int64),
        positions=torch.arange(shape.prompt, length).expand(shape.rows, -1),
        cache=cache,
    )
    return torch.cat([first, rest], dim=1).flatten(0, 1)


def _ids(rows: int, tokens: int) -> Tensor:
    return torch.zeros(rows, tokens, dtype=torch.int64)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


@contextmanager
def without_data(model: Any, settings: Settings) -> Iterator[CausalModel]:
    """The model on fake CPU tensors, which have shapes and no values."""
    modes.disable_rescaling(model.eval())
    merge = settings.lora is not None and settings.lora.merge
    with FakeTensorMode(allow_non_fake_inputs=True), _Grouped(), _overwritten():
        model.to_empty(device="cpu")
        yield CausalModel(model, recompute=settings.gradient_checkpointing, merge=merge)


@contextmanager
def _overwritten() -> Iterator[None]:
    """Have torch create new parameters when a module is converted to another kind of tensor."""
    future = torch.__future__
    before = future.get_overwrite_module_params_on_conversion()
    future.set_overwrite_module_params_on_conversion(True)
    try:
        yield
    finally:
        future.set_overwrite_module_params_on_conversion(before)


class _Grouped(TorchDispatchMode):
    """Gives the output shape of experts' grouped products, which torch knows in bf16 only."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten._grouped_mm.default:
            return args[0].new_empty(args[0].shape[0], args[1].shape[-1])
        return function(*args, **(kwargs or {}))
