"""Memory: what a run will take, from the model's configuration alone.

What is saved for the backward pass is counted rather than computed by a formula: the model's own
code runs on tensors without data, and every tensor that autograd keeps is added up.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from groupwise.errors import first_line
from groupwise_llm import modes
from groupwise_llm.causal import CausalModel, Hidden, Run, head_is_linear
from groupwise_llm.copies import Numerics
from groupwise_llm.likelihood import TOKENS, VOCABULARY
from groupwise_llm.loading import outline, positions_of
from groupwise_llm.merging import causal_of
from groupwise_llm.settings import Settings
from groupwise_llm.trial import TOLERANCE

LOGITS = "logits in the backward pass"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A micro-batch: rows of completions that answer prompts, all of one length in tokens."""

    prompts: int
    prompt: int
    rows: int
    completion: int


def estimate(
    config: Any,
    settings: Settings,
    *,
    budget: int,
    rollouts: int,
    training: bool,
    reference: bool,
    averages: int,
) -> Mapping[str, int]:
    """Bytes of weights, gradients, optimizer, activations, logits, kept weights and the sampler's
    cache.

    config: transformers' configuration; budget: tokens in one micro-batch; rollouts: completions
    sampled together at the most; reference: whether one is kept, of which adapters need no copy;
    averages: how many moving averages are.
    """
    model = outline(settings, config)
    trained = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = {"weights": _held(model, settings)}
    if training:
        block = min(budget, TOKENS) * min(config.get_text_config().vocab_size, VOCABULARY)
        sizes |= {"gradients": trained, "optimizer": 2 * trained, LOGITS: 4 * 3 * block}
    if reference and settings.lora is None:
        sizes["reference"] = trained
    if averages:
        sizes["moving average"] = averages * trained
    try:
        with _without_data(model, settings) as causal:
            sizes |= _counted(causal, config, settings, budget if training else 0, rollouts)
    except Exception as error:  # of code that looks at values, which there are none of
        reason = shorten(first_line(error), 60, placeholder=" ...")
        sizes[f"activations and cache: not counted ({reason})"] = 0
    return sizes


def _held(model: Any, settings: Settings) -> int:
    """Bytes of all weights; of linear layers but the head in fewer bits, where they are quantised.

    NF4 has a scale of 8 bits for each 64 weights, int8 one of 32 bits for each row.
    """
    size = sum(p.nbytes for p in model.parameters())
    if settings.quantize is None:
        return size
    head = causal_of(model).get_output_embeddings()
    bytes_of_weight = {"4bit": 0.5 + 1 / 64, "8bit": 1.0}[settings.quantize]
    for module in model.modules():
        if type(module) is nn.Linear and module is not head and not module.weight.requires_grad:
            size += int(bytes_of_weight * module.weight.numel()) - module.weight.nbytes
    return size


def _counted(
    model: CausalModel, config: Any, settings: Settings, budget: int, rollouts: int
) -> Mapping[str, int]:
    """What runs of the model's code tell: a micro-batch of `budget` tokens, and a row's cache."""
    sizes = {}
    plain = head_is_linear(model.causal) and _only_multiplies(model)
    numerics = Numerics(settings.precision, plain, settings.head_precision)
    prompt, completion = _lengths(config, settings)
    if budget:
        rows = max(1, (budget - prompt) // completion)
        shape = Shape(prompts=1, prompt=prompt, rows=rows, completion=completion)
        sizes["activations"] = saved(model, numerics, shape)
        if model.checkpoints is not None:
            layers = config.get_text_config().num_hidden_layers
            with model.checkpoints.off():
                all_of_them = saved(model, numerics, shape, head=False)
            sizes["activations of a layer"] = all_of_them // layers
        if not plain:
            # Those of the log-probs and of the logits that they are taken of.
            vocabulary = config.get_text_config().vocab_size
            sizes[LOGITS] = 4 * 2 * rows * completion * vocabulary
    if model.cache_argument is not None:
        rows = min(rollouts, max(1, settings.cache_tokens // (prompt + completion)))
        sizes["cache of the sampler"] = rows * cached(model, numerics, prompt + completion)
    with torch.no_grad(), model.copies.standing_in(numerics):
        sizes["copy in bf16"] = _bytes(model.copies.tensors())
    with torch.no_grad(), model.sampling(numerics):
        copies = _bytes(model.copies.tensors())
        sizes["merged adapters while sampling"] = copies - sizes["copy in bf16"]
    return {purpose: size for purpose, size in sizes.items() if size}


def saved(model: CausalModel, numerics: Numerics, shape: Shape, *, head: bool = True) -> int:
    """Bytes that a micro-batch's pass keeps for the backward pass, weights and their copies not
    counted.

    head: whether log-probs are taken, or the pass ends with hidden states.
    """
    sizes: dict[int, int] = {}
    alive = []  # a storage that is freed could give its number to another

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
        alive.append(tensor)
        return tensor

    run: Run = partial(_shared, shape=shape, cache=model.new_prompt_cache())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if head:
            tokens = _ids(shape.rows, shape.completion).flatten()
            answers = model(run, numerics, tokens, temperature=1.0)[0]
        else:
            answers = model.hidden(run, replace(numerics, plain_head=True))
    own = (*model.parameters(), *model.buffers(), *model.copies.tensors())
    for tensor in own:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    del answers
    return sum(sizes.values())


class _Hidden(BaseModelOutput):
    """What the layers answer, and nothing of what else a head may pass on."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _only_multiplies(model: CausalModel) -> bool:
    """Whether logits are the head's product and no more, as `probes` finds with weights.

    The model's own code is given hidden states with values, and a small head with values; the
    layers before it are left out.
    """
    causal, head = model.causal, model.causal.get_output_embeddings()
    layers = (causal.base_model, causal.get_decoder())  # OPT calls the second past the first
    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        # Logits of a standard deviation of 10, so that a cap or scale shows.
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
    """Bytes of the cache of one row of so many tokens."""
    cache = model.new_cache()
    with torch.no_grad():
        model(lambda hidden: hidden(_ids(1, tokens), cache=cache, keep=1)[:, -1], numerics)
    states = [value for layer in cache.layers for value in _tensors(vars(layer))]
    return sum(state.nbytes for state in states if state.ndim > 1)


def _shared(hidden: Hidden, shape: Shape, cache: DynamicCache) -> Tensor:
    """As `passes.shared`, for prompts and completions of one length each."""
    seen = torch.ones(shape.prompts, shape.prompt, dtype=torch.int64)
    positions = torch.arange(shape.prompt).expand(shape.prompts, -1)
    ids = _ids(shape.prompts, shape.prompt)
    which = torch.arange(shape.rows) % shape.prompts
    first = hidden(ids, attention=seen, positions=positions, cache=cache, keep=1)[which]
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


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _lengths(config: Any, settings: Settings) -> tuple[int, int]:
    """(prompt, completion) in tokens: the longest there can be, and as long, where prompts have no
    limit of their own."""
    completion = settings.max_new_tokens
    prompt = settings.max_prompt_tokens or completion
    positions = positions_of(config)
    if positions is not None:
        prompt = max(1, min(prompt, positions - completion))
    return prompt, completion


@contextmanager
def _without_data(model: Any, settings: Settings) -> Iterator[CausalModel]:
    """The model on tensors that have shapes and no values, of a CPU in name."""
    modes.quieten(model.eval())
    merge = settings.lora is not None and settings.lora.merge
    with FakeTensorMode(allow_non_fake_inputs=True), _Grouped(), _overwritten():
        model.to_empty(device="cpu")
        yield CausalModel(model, recompute=settings.gradient_checkpointing, merge=merge)


@contextmanager
def _overwritten() -> Iterator[None]:
    """Parameters that move to another kind of tensor are made anew."""
    future = torch.__future__
    before = future.get_overwrite_module_params_on_conversion()
    future.set_overwrite_module_params_on_conversion(True)
    try:
        yield
    finally:
        future.set_overwrite_module_params_on_conversion(before)


class _Grouped(TorchDispatchMode):
    """Experts' products, whose shapes torch knows in bf16 alone."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten._grouped_mm.default:
            return args[0].new_empty(args[0].shape[0], args[1].shape[-1])
        return function(*args, **(kwargs or {}))
