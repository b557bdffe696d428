"""Memory that one process of a run takes, estimated from the configurations in the pipeline's
folder."""

from collections.abc import Mapping

import torch
from torch import nn

from groupwise.kit import memory
from groupwise.kit.memory import Workload
from groupwise_flow.adapter import Adapter
from groupwise_flow.estimates.activations import activations
from groupwise_flow.estimates.sampling_memory import SamplingMemory
from groupwise_flow.files.outline import outline
from groupwise_flow.model.precision import HALF, stored
from groupwise_flow.passes.guidance import at_evaluation, has_two_branches
from groupwise_flow.settings import Settings


def estimate(settings: Settings, load: Workload) -> Mapping[str, int]:
    """Bytes of weights, gradients, optimizer, activations and sampling; an estimate, not a bound.

    {} for a pipeline with components of unknown classes; else as `of_adapter`.
    """
    adapter = outline(settings)
    if adapter is None:
        return {}
    images = min(load.decisions, settings.batch, load.rollouts)
    if load.training and settings.kept_graphs:
        images = load.rollouts * settings.kept_graphs
    return of_adapter(
        adapter,
        settings,
        images=images,
        sampled=load.sampled,
        training=load.training,
        reference=load.reference,
        averages=load.averages,
        shards=load.shards,
    )


def estimate_cpu(
    settings: Settings, *, rollouts: int, prompts: int, facts: frozenset[str], references: int
) -> Mapping[str, int]:
    """Bytes in CPU memory while the models are on another device; see `Policy.estimate_cpu`."""
    adapter = outline(settings)
    if adapter is None:
        return {}
    sizes = SamplingMemory(adapter, settings).on_cpu(
        rollouts=rollouts, prompts=prompts, facts=facts, references=references
    )
    if settings.encoders != "offload":
        return sizes
    return {"text encoders": _encoders(_models(adapter, settings), adapter), **sizes}


def of_adapter(
    adapter: Adapter,
    settings: Settings,
    *,
    images: int,
    sampled: int = 0,
    training: bool,
    reference: bool,
    averages: int,
    shards: int,
) -> Mapping[str, int]:
    """The same for a pipeline behind its adapter; its models may be without weights.

    images: whose activations are held at once, 0 for no update; sampled: rollouts that are sampled
        at once, 0 for none, else the models must be without weights (device meta); reference,
        averages: number of weight copies kept; shards: processes among which the trained model, its
        gradients, optimizer state and copies are divided.
    """
    models = _models(adapter, settings)
    sizes = _weights(models, adapter, settings, shards)
    if sampled:
        moved = 0 if settings.encoders == "resident" else _encoders(models, adapter)
        both = {adapter, at_evaluation(adapter, settings)}
        taken = [SamplingMemory(each, settings).on_device(sampled, moved) for each in both]
        most: Mapping[str, int] = max(taken, key=_total)
        sizes |= most
    parts = adapter.models.values()
    trained = sum(p.numel() for part in parts for p in part.parameters() if p.requires_grad)
    trained = -(-trained // shards)
    half = HALF.get(settings.precision)
    if training:
        sizes |= {"gradients": 4 * trained, "optimizer": 8 * trained}
    if shards > 1:
        width = half.itemsize if half else None
        update = training and images > 0
        # One of them runs at a time.
        gathered = [memory.gathered(part, width, training=update) for part in parts]
        largest: Mapping[str, int] = max(gathered, key=_total)
        sizes |= largest
    elif half and settings.lora is None:
        names = ", ".join(adapter.trained)
        sizes[f"{names} in {settings.precision}"] = half.itemsize * trained
    if not training:
        return sizes
    kept = activations(SamplingMemory(adapter, settings), settings) if images else 0.0
    if kept:
        branches = 1 + (
            settings.trains_unconditional
            and has_two_branches(adapter, settings.guidance_in_training)
        )
        sizes["activations"] = int((half or torch.float32).itemsize * images * branches * kept)
    copies = {"reference": int(reference), "moving average": averages}
    return sizes | {name: 4 * trained * count for name, count in copies.items() if count}


def _models(adapter: Adapter, settings: Settings) -> dict[str, int]:
    """Bytes of each model as loaded, without LoRA's weights, which are negligible."""
    lora = settings.lora is not None
    dtypes = stored(settings.precision, type(adapter), adapter.trained, lora=lora)
    return {
        name: _bytes(part, dtypes.get(name, dtypes["default"]))
        for name, part in adapter.pipeline.components.items()
        if isinstance(part, nn.Module)
    }


def _encoders(models: Mapping[str, int], adapter: Adapter) -> int:
    """Bytes of the text encoders."""
    return sum(models.get(name, 0) for name in adapter.encoders)


def _weights(
    models: Mapping[str, int], adapter: Adapter, settings: Settings, shards: int
) -> dict[str, int]:
    """Bytes of the models that are always on the device; those but the trained ones together."""
    frozen = sum(size for name, size in models.items() if name not in adapter.trained)
    if settings.encoders != "resident":
        frozen -= _encoders(models, adapter)
    return {"frozen models": frozen} | {
        name: -(-models[name] // shards) for name in adapter.trained
    }


def _bytes(module: nn.Module, dtype: torch.dtype) -> int:
    """Bytes of a module's weights; in fp16, T5 keeps some of them in float32."""
    wide = getattr(module, "_keep_in_fp32_modules", None) or () if dtype == torch.float16 else ()
    return sum(
        p.numel() * (4 if any(part in wide for part in name.split(".")) else dtype.itemsize)
        for name, p in module.named_parameters()
        if ".lora_" not in name
    )


def _total(sizes: Mapping[str, int]) -> int:
    return sum(sizes.values())
