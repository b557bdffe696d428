"""Memory that one process of a run takes, estimated from the model's configuration alone.

Activations saved for the backward pass are counted by running the model's code without data
(`counting`), not by a formula.
"""

from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.kit import memory
from groupwise.kit.errors import first_line
from groupwise.kit.memory import Workload
from groupwise_llm.estimates.counting import (
    Shape,
    cached,
    logits_are_the_product,
    saved,
    without_data,
)
from groupwise_llm.files.folder import positions_of
from groupwise_llm.files.loading import outline
from groupwise_llm.model.causal import CausalModel, head_is_linear
from groupwise_llm.model.copies import Numerics
from groupwise_llm.model.likelihood import TOKENS, VOCABULARY
from groupwise_llm.model.merging import causal_of
from groupwise_llm.settings import Settings

LOGITS = "logits in the backward pass"


def estimate(config: Any, settings: Settings, load: Workload) -> Mapping[str, int]:
    """Bytes of weights, gradients, optimizer, activations, logits, kept weights and KV cache.

    config: transformers' configuration. With adapters, a reference that does not move takes no
    memory; `load.decisions` are tokens.
    """
    model = outline(settings, config)
    trained = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = {"weights": _held(model, settings)}
    if load.training:
        sizes |= {"gradients": trained, "optimizer": 2 * trained}
    if load.reference and settings.lora is None:
        sizes["reference"] = trained
    if load.averages:
        sizes["moving average"] = load.averages * trained
    updates, samples = load.training and load.decisions > 0, load.sampled > 0
    if load.shards > 1:
        sizes = {purpose: -(-size // load.shards) for purpose, size in sizes.items()}
        sizes |= _gathered(model, settings, updates=updates, samples=samples)
    if updates:
        block = min(load.decisions, TOKENS) * min(config.get_text_config().vocab_size, VOCABULARY)
        sizes[LOGITS] = 4 * 3 * block
    try:
        with without_data(model, settings) as causal:
            if load.shards == 1:
                sizes |= _copies(causal, settings, samples=samples)
            if updates:
                shape = _largest(config, settings, load)
                sizes |= _update(causal, config, settings, shape)
            if samples:
                sizes |= _cache(causal, config, settings, load.sampled)
    except Exception as error:  # the model's code reads values, and fake tensors have none
        reason = shorten(first_line(error), 60, placeholder=" ...")
        sizes[f"activations and cache: not counted ({reason})"] = 0
    return sizes


def _gathered(model: Any, settings: Settings, *, updates: bool, samples: bool) -> Mapping[str, int]:
    """Bytes of the weights of a sharded model that are gathered at some time."""
    width = 2 if settings.precision == "bf16" else None
    sizes = memory.gathered(model, width, training=updates)
    if samples:
        sizes = {**sizes, "weights gathered for sampling": memory.size(model.parameters(), width)}
    return sizes


def _held(model: Any, settings: Settings) -> int:
    """Bytes of all weights; with `quantize`, frozen linear layers except the head are quantised.

    NF4: 4 bits a weight and an 8-bit scale per 64 weights; int8: 8 bits a weight.
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


def _largest(config: Any, settings: Settings, load: Workload) -> Shape:
    """The micro-batch of as many tokens that `packing.pack` makes of the longest rollouts."""
    prompt, completion = _lengths(config, settings)
    groups, rest = divmod(load.decisions, prompt + load.group_size * completion)
    extra = max(0, rest - prompt) // completion  # rows of one more, incomplete group
    rows = min(load.rollouts, max(1, groups * load.group_size + extra))
    prompts = -(-rows // load.group_size)
    return Shape(prompts=prompts, prompt=prompt, rows=rows, completion=completion)


def _update(model: CausalModel, config: Any, settings: Settings, shape: Shape) -> Mapping[str, int]:
    """Bytes of activations and logits in a micro-batch, counted by running the model's code."""
    plain = head_is_linear(model.causal) and logits_are_the_product(model)
    numerics = Numerics(settings.precision, plain, settings.head_precision)
    sizes = {"activations": saved(model, numerics, shape)}
    text = config.get_text_config()
    if model.recomputation is not None:
        with model.recomputation.off():
            all_of_them = saved(model, numerics, shape, head=False)
        sizes["activations of a layer"] = all_of_them // text.num_hidden_layers
    if not plain:
        # Two tensors of this size: the logits, and their log-softmax.
        sizes[LOGITS] = 4 * 2 * shape.rows * shape.completion * text.vocab_size
    return sizes


def _cache(model: CausalModel, config: Any, settings: Settings, sampled: int) -> Mapping[str, int]:
    """Bytes of the KV cache of all rows in one batch, where the model has such a cache."""
    if model.cache_argument is None:
        return {}
    tokens = sum(_lengths(config, settings))
    rows = min(sampled, max(1, settings.cache_tokens // tokens))
    return {"cache of the sampler": rows * cached(model, _numerics(settings), tokens)}


def _copies(model: CausalModel, settings: Settings, *, samples: bool) -> Mapping[str, int]:
    """Bytes of the bf16 and merged copies that passes read; a sharded model has none."""
    numerics = _numerics(settings)
    with torch.no_grad(), model.copies.swapped_in(numerics):
        sizes = {"copy in bf16": _bytes(model.copies.tensors())}
    if samples:
        with torch.no_grad(), model.sampling(numerics):
            copies = _bytes(model.copies.tensors())
            sizes["merged adapters while sampling"] = copies - sizes["copy in bf16"]
    return {purpose: size for purpose, size in sizes.items() if size}


def _numerics(settings: Settings) -> Numerics:
    return Numerics(settings.precision, True, settings.head_precision)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _lengths(config: Any, settings: Settings) -> tuple[int, int]:
    """(prompt, completion): the longest, in tokens. A prompt without max_prompt_tokens counts as
    long as a completion."""
    completion = settings.max_new_tokens
    prompt = settings.max_prompt_tokens or completion
    positions = positions_of(config)
    if positions is not None:
        prompt = max(1, min(prompt, positions - completion))
    return prompt, completion
