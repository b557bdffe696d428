"""The model card's facts: base model, library, and the code that uses the saved folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from groupwise_flow.adapter import Adapter, EditingAdapter
from groupwise_flow.model.precision import HALF
from groupwise_flow.settings import Settings
from groupwise_messages.video import USUAL_RATE

PROMPT = '    "a photo of a cat",'
PRIVATE = frozenset({"token", "cache_dir", "local_files_only"})
"""Arguments of loading that hold for this machine only, so the card leaves them out."""


def card(settings: Settings, adapter: Adapter) -> Mapping[str, Any]:
    """`base_model`, `library_name`, `pipeline_tag`, and `usage`, where `{path}` is the folder."""
    base = settings.model
    if Path(base).exists():
        base = str(Path(base).resolve())
    kind = "video" if adapter.is_video else "image"
    return {
        "base_model": base,
        "library_name": "diffusers",
        "pipeline_tag": f"{'image' if sources(adapter) else 'text'}-to-{kind}",
        "usage": _usage(settings, adapter, base),
    }


def sources(adapter: Adapter) -> int:
    """The number of pictures that each row has."""
    return adapter.options.references if isinstance(adapter, EditingAdapter) else 0


def _reading(adapter: Adapter) -> list[str]:
    """Lines that read the pictures for the call."""
    if not isinstance(adapter, EditingAdapter) or not sources(adapter):
        return []
    names = [f'"source{number + 1}.png"' for number in range(sources(adapter))]
    return [
        f"images = [load_image(name) for name in ({', '.join(names)},)]",
        f"images = [{adapter.fitting_code} for image in images]",
    ]


def _usage(settings: Settings, adapter: Adapter, base: str) -> str:
    pipeline = adapter.pipeline
    absent = [name for name, part in pipeline.components.items() if part is None]
    arguments = dict.fromkeys(set(absent) - set(pipeline._optional_components))
    if settings.lora is not None:
        arguments |= {k: v for k, v in settings.loading.items() if k not in PRIVATE}
    # Stated in float32, too: a part whose files are in half precision would stay so.
    dtype = HALF.get(settings.precision, torch.float32)
    call = adapter.call_arguments(
        guidance=settings.guidance, negative_prompt=settings.negative_prompt
    )
    options = [f'"{base if settings.lora is not None else "{path}"}"']
    options += [f"{name}={value!r}" for name, value in sorted(arguments.items())]
    options += [f"dtype={dtype}"]
    # A saved folder has the scheduler already; with LoRA the pipeline is the original one.
    other = adapter.exchanged if settings.lora is not None else None
    names = sorted({"DiffusionPipeline"} | ({other.kind.__name__} if other else set()))
    lines = ["import torch", f"from diffusers import {', '.join(names)}"]
    lines += ["from diffusers.utils import export_to_video", ""] if adapter.is_video else [""]
    if reading := _reading(adapter):
        lines[-1:] = ["from diffusers.utils import load_image", "from PIL import ImageOps", ""]
    lines += [f"pipeline = DiffusionPipeline.from_pretrained({', '.join(options)})"]
    if settings.lora is not None:
        lines += adapter.lora_code
    if other is not None:
        changed = [f"{name}={value!r}" for name, value in other.settings.items()]
        made = ", ".join(["pipeline.scheduler.config", *changed])
        own = type(adapter.own_scheduler).__name__
        lines += [
            f"# It was trained with this scheduler in place of {own}.",
            f"pipeline.scheduler = {other.kind.__name__}.from_config({made})",
        ]
    for part, values in adapter.call_settings(guidance=settings.guidance).items():
        changed = [f"{key}={value!r}" for key, value in values.items()]
        lines += [f"pipeline.{part} = pipeline.{part}.new({', '.join(changed)})"]
    lines += [*adapter.call_code, *reading]
    name, output = ("video", "frames") if adapter.is_video else ("image", "images")
    lines += [
        f"{name} = pipeline(",
        *(["    image=images,", '    prompt="make the sky red",'] if reading else [PROMPT]),
        f"    height={adapter.height},",
        f"    width={adapter.width},",
        f"    num_inference_steps={settings.evaluation_steps},",
        *(f"    {key}={value!r}," for key, value in call.items()),
        f").{output}[0]",
    ]
    if adapter.is_video:
        rate = getattr(adapter, "frame_rate", USUAL_RATE)
        lines += [f'export_to_video(video, "video.mp4", fps={rate:g})']
    return "\n".join(lines)
