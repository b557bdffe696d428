"""Seconds of the parts of a step, calculated from a model, a machine and a batch."""

from dataclasses import dataclass, replace
from math import ceil, exp

import machines
from machines import GB, H100, Machine
from models import Image, Text

HALF, FULL = 2, 4
"""Bytes of a number in bf16, for computing, and in float32, for sums over processes."""
CHUNK = 64
"""Tokens over which the time of decoding is taken as constant."""


@dataclass(frozen=True)
class TextBatch:
    """Rollouts of a step. prompt, mean, longest: lengths in tokens, those of completions by mean
    and maximum; microbatch: tokens in a pass."""

    groups: int = 128
    group_size: int = 16
    prompt: int = 256
    mean: int = 1500
    longest: int = 4096
    microbatch: int = 16384

    @property
    def rollouts(self) -> int:
        return self.groups * self.group_size

    @property
    def tokens(self) -> int:
        return self.rollouts * (self.prompt + self.mean)


@dataclass(frozen=True)
class ImageBatch:
    """Images of a step. steps: of denoising; decisions: trained steps; together: images in a pass;
    guided: whether each denoising step has an unconditional pass, too."""

    groups: int = 48
    group_size: int = 24
    steps: int = 10
    decisions: int = 3
    together: int = 8
    guided: bool = False


@dataclass(frozen=True)
class Step:
    """Seconds of each part. gathers: traffic that does not overlap with training or sampling."""

    sampling: float
    rewards: float
    passes: float
    gathers: float
    sync: float

    @property
    def seconds(self) -> float:
        return self.sampling + self.rewards + self.passes + self.gathers + self.sync


# ---- traffic


def gather(
    weights: int, blocks: int, processes: int, machine: Machine = H100, width: int = HALF
) -> float:
    """Seconds to gather all weights once, or to sum and scatter as many gradients."""
    if processes == 1:
        return 0.0
    share = (processes - 1) / processes
    hops = (blocks + 1) * (processes - 1) * machines.HOP
    return width * weights * share / machine.gather(processes) + hops


def of_pass(weights: int, blocks: int, processes: int, machine: Machine, *, lora: bool) -> float:
    """Seconds of traffic for a forward and a backward pass; gradients are summed in float32."""
    once = gather(weights, blocks, processes, machine)
    scatter = 0.0 if lora else gather(weights, blocks, processes, machine, FULL)
    return 2 * once + scatter


def between_nodes(weights: int, machine: Machine) -> float:
    """Seconds to sum the gradients of nodes that each have all weights, an eighth on each GPU: a
    ring passes them twice, in float32."""
    return 2 * FULL * weights / machines.NODE / (machines.COLLECTIVE * machine.network)


def sync(weights: int) -> float:
    """Seconds to send the weights to engines, in bf16."""
    return HALF * weights / machines.SYNC


# ---- text


def decode(
    model: Text, sequences: float, context: float, *, gpus: int = 1, machine: Machine = H100
) -> float:
    """Seconds to decode one token of each of `sequences` sequences on an engine of `gpus` GPUs."""
    size = HALF * model.weights + sequences * context * model.cached
    reading = size / gpus / (machines.READING * machine.hbm)
    computing = model.forward(sequences, context) / gpus / (machines.SERVING * machine.flops)
    sums = 2 * model.layers * machines.REDUCE if gpus > 1 else 0.0
    return max(reading, computing) + sums + machines.HOST * sequences


def capacity(model: Text, tokens: int, *, gpus: int, machine: Machine = H100) -> int:
    """Sequences of `tokens` tokens that fit into the memory of an engine at once."""
    room = 0.9 * machine.memory * gpus - HALF * model.weights
    return max(1, min(machines.SEQUENCES, int(room / (model.cached * tokens))))


def generation(
    model: Text, batch: TextBatch, *, gpus: int, tensor: int = 1, machine: Machine = H100
) -> float:
    """Seconds to sample a batch by engines of `tensor` GPUs each; groups share their prompt."""
    engines = max(1, gpus // tensor)
    sequences = ceil(batch.rollouts / engines)
    together = min(sequences, capacity(model, batch.prompt + batch.mean, gpus=tensor))
    prompts = ceil(batch.groups / engines)
    work = model.forward(prompts * batch.prompt, batch.prompt / 2)
    prefill = work / tensor / (machines.SERVING * machine.flops)
    context = batch.prompt + batch.mean / 2
    steady = (sequences - together) * batch.mean / together
    seconds = steady * decode(model, together, context, gpus=tensor, machine=machine)
    scale = _scale(batch.mean, batch.longest)
    for start in range(0, batch.longest, CHUNK):
        alive = max(1.0, together * exp(-start / scale))
        token = decode(model, alive, batch.prompt + start, gpus=tensor, machine=machine)
        seconds += min(CHUNK, batch.longest - start) * token
    return prefill + seconds


def _scale(mean: float, longest: float) -> float:
    """The scale of an exponential distribution that has mean `mean` when cut at `longest`."""
    low, high = mean, 1e9
    for _ in range(100):
        middle = (low + high) / 2
        cut = middle * (1 - exp(-longest / middle))
        low, high = (middle, high) if cut < mean else (low, middle)
    return low


def training(
    model: Text,
    batch: TextBatch,
    *,
    gpus: int,
    passes: float,
    lora: bool,
    machine: Machine = H100,
) -> tuple[float, float]:
    """Seconds of the passes, and of their traffic that does not overlap with them.

    passes: the work of a token in forward passes: 3 with the backward pass, 4 if activations are
    recomputed, one less for adapters. Rollouts are dealt among the GPUs by their tokens.
    """
    tokens = ceil(batch.rollouts / gpus) * (batch.prompt + batch.mean)
    parts = max(1, ceil(tokens / batch.microbatch))
    work = passes * model.forward(tokens, (batch.prompt + batch.mean) / 2)
    seconds = work / (machines.TRAINING * machine.flops)
    traffic = of_pass(model.weights, model.layers, gpus, machine, lora=lora)
    return seconds, max(0.0, parts * traffic - seconds)


def text_step(
    model: Text,
    batch: TextBatch,
    *,
    gpus: int,
    tensor: int = 1,
    lora: bool = False,
    passes: float | None = None,
    machine: Machine = H100,
) -> Step:
    """A step with engines on the GPUs that train, which sleep during training."""
    work, gathers = training(
        model,
        batch,
        gpus=gpus,
        passes=passes or (3 if lora else 4),
        lora=lora,
        machine=machine,
    )
    return Step(
        sampling=generation(model, batch, gpus=gpus, tensor=tensor, machine=machine),
        rewards=machines.TEXT_REWARD,
        passes=work,
        gathers=gathers,
        sync=sync(model.weights) + machines.WAKE,
    )


def ahead_step(
    model: Text,
    batch: TextBatch,
    *,
    engines: int,
    gpus: int,
    tensor: int = 1,
    passes: float = 4,
    machine: Machine = H100,
) -> tuple[float, float]:
    """(seconds of sampling, rewards and sync, seconds of training) with `ahead: 1`.

    engines, gpus: GPUs that sample, and that train; the step takes the longer of the two.
    """
    sampling = generation(model, batch, gpus=engines, tensor=tensor, machine=machine)
    work, gathers = training(model, batch, gpus=gpus, passes=passes, lora=False, machine=machine)
    return sampling + machines.TEXT_REWARD + sync(model.weights), work + gathers


# ---- images


def image_step(
    model: Image,
    batch: ImageBatch,
    *,
    gpus: int,
    lora: bool,
    shard: bool = True,
    passes: float | None = None,
    sampled: float | None = None,
    machine: Machine = H100,
) -> Step:
    """A step that samples in process.

    passes: the work of a decision in forward passes, 4 and 3 with adapters if activations are
        recomputed, and as many for the unconditional branch.
    sampled: forward passes to sample a picture. Pictures are sampled, and their passes made, by all
        processes alike; a group is judged by one.
    """
    judged = ceil(batch.groups / gpus) * batch.group_size
    pictures = ceil(batch.groups * batch.group_size / gpus)
    branches = 2 if batch.guided else 1
    sampled = sampled or branches * batch.steps
    passes = passes or branches * (3 if lora else 4)
    one = model.flops / (machines.IMAGES * machine.flops)
    sampling, work = pictures * sampled * one, pictures * batch.decisions * passes * one
    once = gather(model.weights, model.blocks, gpus, machine) if shard else 0.0
    drawing = ceil(pictures / batch.together) * sampled * once
    both = of_pass(model.weights, model.blocks, gpus, machine, lora=lora) if shard else 0.0
    learning = ceil(pictures / batch.together) * batch.decisions * branches * both
    return Step(
        sampling=sampling,
        rewards=judged * machines.IMAGE_REWARD,
        passes=work,
        gathers=max(0.0, drawing - sampling) + max(0.0, learning - work),
        sync=0.0,
    )


def with_network(rate: float) -> Machine:
    """An H100 machine with a network of `rate` Gb/s for each node, shared by its GPUs."""
    return replace(H100, network=rate / 8 * GB / machines.NODE)
