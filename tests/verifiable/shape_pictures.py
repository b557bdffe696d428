"""Draws test pictures for the detector of shapes: large, then scaled down for soft edges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

FINE = 8
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 200, 40),
    "orange": (250, 140, 30),
    "purple": (140, 60, 170),
    "cyan": (40, 200, 215),
}
PURE = {
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "orange": (255, 165, 0),
    "purple": (128, 0, 128),
    "cyan": (0, 255, 255),
}
BACKGROUNDS = {"white": (255, 255, 255), "grey": (215, 215, 215), "dark": (32, 32, 32)}

Part = tuple[int, int] | list[tuple[float, float]]


def _box(left: float, top: float, right: float, bottom: float) -> Part:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _around(radius: float, power: float = 1.0) -> list[tuple[float, float]]:
    """Points of a circle; powers below 1 give a rounded square."""
    turns = [2 * math.pi * step / 64 for step in range(65)]
    return [
        tuple(math.copysign(radius * abs(v) ** power, v) for v in (math.cos(turn), math.sin(turn)))
        for turn in turns
    ]


# Parts of each shape: slices of a disk (start, end), in degrees clockwise from the right, or
# polygons, in units of the radius.
PARTS: dict[str, list[Part]] = {
    "disk": [(0, 360)],
    "square": [_box(-1, -1, 1, 1)],
    "cross": [_box(-1, -1 / 3, 1, 1 / 3), _box(-1 / 3, -1, 1 / 3, 1)],
    "triangle": [[(0, -1), (1, 1), (-1, 1)]],
    "triangle down": [[(-1, -1), (1, -1), (0, 1)]],
    "triangle left": [[(-1, 0), (1, -1), (1, 1)]],
    "triangle right": [[(-1, -1), (1, 0), (-1, 1)]],
    "half disk, half square": [(90, 270), _box(0, -1, 1, 1)],
    "hut on a bowl": [(0, 180), [(0, -1), (1, 0), (-1, 0)]],
    "half disk": [(0, 180)],
    "rounded square": [_around(1.0, 0.55)],
    "bitten disk": [(40, 320)],
    "corner": [_box(-1, -1, 0, 1), _box(-1, 0, 1, 1)],
    "tee": [_box(-1, -1, 1, -1 / 3), _box(-1 / 3, -1, 1 / 3, 1)],
    "ring": [_around(1.0) + _around(0.6)],
    "diamond": [[(0, -1), (1, 0), (0, 1), (-1, 0)]],
    "house": [[(0, -1), (1, 0), (1, 1), (-1, 1), (-1, 0)]],
    "bar": [_box(-1, -1 / 3, 1, 1 / 3)],
}


@dataclass(frozen=True)
class Drawn:
    """An object: its kind, colour, centre and width in pixels."""

    kind: str
    color: tuple[int, int, int]
    x: float
    y: float
    width: float


def picture(
    *objects: Drawn,
    size: tuple[int, int] = (32, 32),
    background: tuple[int, int, int] = BACKGROUNDS["white"],
    blur: float = 0.0,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Image.Image:
    """An image of `size`; blur: radius of the Gaussian in pixels; noise: its standard deviation."""
    large = Image.new("RGB", (size[0] * FINE, size[1] * FINE), background)
    canvas = ImageDraw.Draw(large)
    for drawn in objects:
        _draw(canvas, drawn)
    image = large.reduce(FINE)
    if blur:
        image = image.filter(ImageFilter.GaussianBlur(blur))
    if not noise:
        return image
    assert rng is not None
    values = np.asarray(image) / 255
    values = values + rng.normal(0, noise, values.shape)
    return Image.fromarray(np.round(values.clip(0, 1) * 255).astype(np.uint8))


def as_floats(image: Image.Image) -> NDArray[np.float32]:
    return (np.asarray(image) / 255).astype(np.float32)


def _draw(canvas: ImageDraw.ImageDraw, drawn: Drawn) -> None:
    x, y, radius = drawn.x * FINE, drawn.y * FINE, drawn.width * FINE / 2
    for part in PARTS[drawn.kind]:
        if isinstance(part, tuple):
            box = (x - radius, y - radius, x + radius - 1, y + radius - 1)
            canvas.pieslice(box, *part, fill=drawn.color)
        else:
            corners = [(x + right * radius, y + down * radius) for right, down in part]
            canvas.polygon(corners, fill=drawn.color)
