"""Image completions as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from groupwise_messages.videos import REFUSED, is_video

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.float32]
FRAMES = 4
"""Dimensions of a video's array or tensor: frames, and those of a picture."""


def pixels(completions: Sequence[Any], *, reward: str) -> list[Pixels]:
    """Returns every image as [H, W, 3] float32 in [0, 1].

    An image is a PIL image of any mode, an array [H, W, 3] or a tensor [3, H, W], of bytes or of
    floats in [0, 1]. A ValueError names the reward and the first completion that is no image.
    """
    return [
        _pixels(image, f"reward {reward!r}, completion {index}")
        for index, image in enumerate(completions)
    ]


def picture(image: Pixels) -> Image:
    """Returns the array [H, W, 3] as a PIL image, rounded to bytes."""
    from PIL import Image

    return Image.fromarray(np.round(image * 255).astype(np.uint8))


def _pixels(image: Any, where: str) -> Pixels:
    if is_video(image) or len(getattr(image, "shape", ())) == FRAMES:
        raise ValueError(f"{where}: expected an image, found {REFUSED}")
    values = _values(image, where)
    if values.ndim != 3 or values.shape[2] != 3 or 0 in values.shape:
        raise ValueError(
            f"{where}: expected an RGB image, found the shape {tuple(np.shape(image))}"
        )
    if values.dtype == np.uint8:
        return values.astype(np.float32) / np.float32(255)
    if values.dtype.kind not in "fb":
        raise ValueError(f"{where}: expected bytes or floats, found {values.dtype}")
    if not (values.min() >= 0 and values.max() <= 1):  # False for NaN, too
        raise ValueError(
            f"{where}: expected floats from 0 to 1, found {values.min():g} to {values.max():g}"
        )
    return values.astype(np.float32)


def _values(image: Any, where: str) -> NDArray[Any]:
    if isinstance(image, np.ndarray):
        return image
    if hasattr(image, "convert"):  # a PIL image, without importing PIL
        return np.asarray(image.convert("RGB"))
    if hasattr(image, "detach"):  # a tensor, likewise
        image = image.detach().cpu()
        # Only floats: numpy has no bfloat16, and bytes stay bytes.
        return np.moveaxis((image.float() if image.is_floating_point() else image).numpy(), 0, -1)
    raise ValueError(f"{where}: expected an image (a PIL image), found {type(image).__name__}")
