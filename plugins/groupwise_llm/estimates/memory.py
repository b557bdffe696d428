"""Memory: what a process of a run will take, from the model's configuration alone.

What is saved for the backward pass is counted rather than computed by a formula (`counting`).
"""

from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from groupwise import memory
from groupwise.errors import first_line
from groupwise_llm.estimates.counting import Shape, cached, only_multiplies, saved, without_data
from groupwise_llm.files.loading import outline, positions_of
from groupwise_llm.model.causal import CausalModel, head_is_linear
from groupwise_llm.model.copies import Numerics
from groupwise_llm.model.likelihood import TOKENS, VOCABULARY
from groupwise_llm.model.merging import causal_of
from groupwise_llm.settings import Settings

LOGITS = "logits in the backward pass"


def estimate(
    config: Any,
    settings: Settings,
    *,
    budget: int,
    rollouts: int,
    group_size: int,
    sampled: int,
    training: bool,
    reference: bool,
    averages: int,
    shards: int = 1,
) -> Mapping[str, int]:
    """Bytes of weights, gradients, optimizer, activations, logits, kept weights and the sampler's
    cache.

    config: transformers' configuration; budget: tokens in one micro-batch, 0 for no update;
    rollouts: as many as an update has, `group_size` to a prompt; sampled: completions that the
    policy samples together at the most, 0 where it samples none; reference: whether one is kept, of
    which adapters need no copy; averages: how many moving averages are; shards: processes among
    which all weights, and what is kept of each, are divided.
    """
    model = outline(settings, config)
    trained = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = {"weights": _held(model, settings)}
    if training:
        sizes |= {"gradients": trained, "optimizer": 2 * trained}
    if reference and settings.lora is None:
        sizes["reference"] = trained
    if averages:
        sizes["moving average"] = averages * trained
    updates, samples = training and budget > 0, sampled > 0
    if shards > 1:
        sizes = {purpose: -(-size // shards) for purpose, size in sizes.items()}
        sizes |= _gathered(model, settings, updates=updates, samples=samples)
    if updates:
        block = min(budget, TOKENS) * min(config.get_text_config().vocab_size, VOCABULARY)
        sizes[LOGITS] = 4 * 3 * block
    try:
        with without_data(model, settings) as causal:
            if shards == 1:
                sizes |= _copies(causal, settings, samples=samples)
            if updates:
                shape = _largest(config, settings, budget, rollouts, group_size)
                sizes |= _update(causal, config, settings, shape)
            if samples:
                sizes |= _cache(causal, config, settings, sampled)
    except Exception as error:  # of code that looks at values, which there are none of
        reason = shorten(first_line(error), 60, placeholder=" ...")
        sizes[f"activations and cache: not counted ({reason})"] = 0
    return sizes


def _gathered(model: Any, settings: Settings, *, updates: bool, samples: bool) -> Mapping[str, int]:
    """Bytes of what of a sharded model is whole for a time."""
    width = 2 if settings.precision == "bf16" else None
    sizes = memory.gathered(model, width, training=updates)
    if samples:
        sizes = {**sizes, "weights gathered for sampling": memory.size(model.parameters(), width)}
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


def _largest(config: Any, settings: Settings, budget: int, rollouts: int, group_size: int) -> Shape:
    """The micro-batch of `budget` tokens that `packing.pack` would make of the longest rollouts."""
    prompt, completion = _lengths(config, settings)
    groups, rest = divmod(budget, prompt + group_size * completion)
    begun = max(0, rest - prompt) // completion  # of one more group
    rows = min(rollouts, max(1, groups * group_size + begun))
    prompts = -(-rows // group_size)
    return Shape(prompts=prompts, prompt=prompt, rows=rows, completion=completion)


def _update(model: CausalModel, config: Any, settings: Settings, shape: Shape) -> Mapping[str, int]:
    """What a run of the model's code tells of a micro-batch."""
    plain = head_is_linear(model.causal) and only_multiplies(model)
    numerics = Numerics(settings.precision, plain, settings.head_precision)
    sizes = {"activations": saved(model, numerics, shape)}
    text = config.get_text_config()
    if model.checkpoints is not None:
        with model.checkpoints.off():
            all_of_them = saved(model, numerics, shape, head=False)
        sizes["activations of a layer"] = all_of_them // text.num_hidden_layers
    if not plain:
        # Those of the log-probs and of the logits that they are taken of.
        sizes[LOGITS] = 4 * 2 * shape.rows * shape.completion * text.vocab_size
    return sizes


def _cache(model: CausalModel, config: Any, settings: Settings, sampled: int) -> Mapping[str, int]:
    """The cache of as many rows as are sampled together, where the model has one."""
    if model.cache_argument is None:
        return {}
    tokens = sum(_lengths(config, settings))
    rows = min(sampled, max(1, settings.cache_tokens // tokens))
    return {"cache of the sampler": rows * cached(model, _numerics(settings), tokens)}


def _copies(model: CausalModel, settings: Settings, *, samples: bool) -> Mapping[str, int]:
    """Bytes of what passes read in place of the weights: there is none of a sharded model's."""
    numerics = _numerics(settings)
    with torch.no_grad(), model.copies.standing_in(numerics):
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
    """(prompt, completion) in tokens: the longest there can be, and as long, where prompts have no
    limit of their own."""
    completion = settings.max_new_tokens
    prompt = settings.max_prompt_tokens or completion
    positions = positions_of(config)
    if positions is not None:
        prompt = max(1, min(prompt, positions - completion))
    return prompt, completion
