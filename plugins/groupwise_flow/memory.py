"""Memory that one process of a run takes, estimated from the configurations in the pipeline's
folder."""

from collections.abc import Mapping

import torch
from torch import nn

from groupwise import memory
from groupwise_flow.adapter import Adapter
from groupwise_flow.guided import has_two_branches
from groupwise_flow.loading import adapter_class, explained, fitted, quiet, read_index
from groupwise_flow.precision import HALF, stored
from groupwise_flow.settings import Settings
from groupwise_flow.skeleton import skeleton


def estimate(
    settings: Settings,
    *,
    images: int,
    training: bool,
    reference: bool,
    averages: int,
    shards: int = 1,
) -> Mapping[str, int]:
    """Bytes of weights, gradients, optimizer and activations; an estimate, not a bound.

    {} for a pipeline with components of unknown classes; else as `of_adapter`.
    """
    index = read_index(settings)
    make = adapter_class(settings, index)
    with quiet(), explained(settings, "cannot read a diffusers pipeline from"):
        pipeline = skeleton(settings, index)
    if pipeline is None:
        return {}
    return of_adapter(
        fitted(pipeline, make, settings),
        settings,
        images=images,
        training=training,
        reference=reference,
        averages=averages,
        shards=shards,
    )


def of_adapter(
    adapter: Adapter,
    settings: Settings,
    *,
    images: int,
    training: bool,
    reference: bool,
    averages: int,
    shards: int,
) -> Mapping[str, int]:
    """The same for a pipeline behind its adapter; its models may be without weights.

    images: in one pass of an update, 0 for no update; reference, averages: number of weight copies
        kept; shards: processes among which the trained model, its gradients, optimizer state and
        copies are divided.
    """
    sizes = _weights(adapter, settings, shards)
    trained = sum(p.numel() for p in adapter.model.parameters() if p.requires_grad)
    trained = -(-trained // shards)
    half = HALF.get(settings.precision)
    if training:
        sizes |= {"gradients": 4 * trained, "optimizer": 8 * trained}
    if shards > 1:
        width = half.itemsize if half else None
        update = training and images > 0
        sizes |= memory.gathered(adapter.model, width, training=update)
    elif half and settings.lora is None:
        sizes[f"{adapter.trained} in {settings.precision}"] = half.itemsize * trained
    if not training:
        return sizes
    kept = adapter.activations(checkpointing=settings.gradient_checkpointing)
    if kept and images:
        branches = 1 + (
            settings.trains_unconditional
            and has_two_branches(adapter, settings.guidance_in_training)
        )
        sizes["activations"] = int((half or torch.float32).itemsize * images * branches * kept)
    copies = {"reference": int(reference), "moving average": averages}
    return sizes | {name: 4 * trained * count for name, count in copies.items() if count}


def _weights(adapter: Adapter, settings: Settings, shards: int) -> dict[str, int]:
    """Bytes of the models as loaded, without LoRA's weights, which are negligible."""
    lora = settings.lora is not None
    dtypes = stored(settings.precision, type(adapter), lora=lora)
    models = {
        name: _bytes(part, dtypes.get(name, dtypes["default"]))
        for name, part in adapter.pipeline.components.items()
        if isinstance(part, nn.Module)
    }
    trained = -(-models.pop(adapter.trained) // shards)
    return {"frozen models": sum(models.values()), adapter.trained: trained}


def _bytes(module: nn.Module, dtype: torch.dtype) -> int:
    """Bytes of a module's weights; in fp16, T5 keeps some of them in float32."""
    wide = getattr(module, "_keep_in_fp32_modules", None) or () if dtype == torch.float16 else ()
    return sum(
        p.numel() * (4 if any(part in wide for part in name.split(".")) else dtype.itemsize)
        for name, p in module.named_parameters()
        if ".lora_" not in name
    )
