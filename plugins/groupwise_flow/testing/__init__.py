"""For authors of adapters: `check_adapter` checks an adapter's laws on a pipeline."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from groupwise.testing import hold
from groupwise_flow.adapter import Adapter, EditingAdapter, Row
from groupwise_flow.testing import own, saved
from groupwise_flow.testing import pipeline as against
from groupwise_flow.testing.case import Case

__all__ = ["LAWS", "check_adapter"]

ROWS = ({"prompt": "a cat"}, {"prompt": "two small dogs and a bird"})
LAWS = (
    own.trained,
    own.conditions,
    own.shapes,
    own.batching,
    own.masked,
    own.depends_on_inputs,
    own.depends_on_sources,
    own.unguided,
    against.noise_levels,
    against.denoising,
    against.guidance,
    against.negative_prompt,
    own.pictures,
    against.decoding,
    saved.saving,
)


def check_adapter(
    adapter_class: type[Adapter],
    pipeline: Any,
    *,
    rows: Sequence[Row] = ROWS,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    prompt_tokens: int = 96,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Check an adapter on a pipeline. Raises AssertionError, which names the first law that is
    broken.

    `groupwise.testing.check_adapter` calls this function for every subclass of `Adapter`.

    pipeline: in float32, ideally a tiny one with random weights. rows: two or more, with prompts of
    different lengths, different pictures if it reads any, and the columns that the adapter reads.
    height, width: of pictures; if unset, a small size at which rows, columns, channels and tokens
    are all of different numbers, so that no two of them can be mistaken for each other. frames: of
    videos; if unset, as few as there are two frames of latents. options: of the adapter, by name.
    """
    pipeline.set_progress_bar_config(disable=True)
    if rows is ROWS:
        rows = _with_pictures(adapter_class, options or {})
    sizes = {
        "height": height,
        "width": width,
        "frames": frames,
        "prompt_tokens": prompt_tokens,
        "options": adapter_class.Config.model_validate(dict(options or {})),
    }
    hold(adapter_class.__name__, LAWS, Case(adapter_class, pipeline, rows, sizes))


def _with_pictures(kind: type[Adapter], options: Mapping[str, Any]) -> Sequence[Row]:
    """`ROWS` with as many pictures as the adapter reads, of noise."""
    if not issubclass(kind, EditingAdapter):
        return ROWS
    count, noise = kind.Config.model_validate(dict(options)).references, np.random.default_rng(0)

    def picture() -> Image.Image:
        return Image.fromarray(noise.integers(0, 256, (96, 128, 3), np.uint8))

    return [{**row, "images": [picture() for _ in range(count)]} for row in ROWS]
