"""Parts of pictures, drawn in units of a 64th of the picture's side, and what degrades them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Point = tuple[float, float]
Part = Callable[[ImageDraw.ImageDraw, float], object]

RED, GREEN, BLUE, YELLOW = (220, 40, 40), (40, 160, 60), (50, 80, 220), (240, 200, 40)
WHITE, BLACK, GRAY = (255, 255, 255), (0, 0, 0), (215, 215, 215)
_FINE = 4


def draw(
    *parts: Part, side: int = 64, background: tuple[int, int, int] = WHITE, fine: int = _FINE
) -> Image.Image:
    """A square picture of parts; fine: 1 for edges without antialiasing."""
    image = Image.new("RGB", (side * fine, side * fine), background)
    for part in parts:
        part(ImageDraw.Draw(image), side * fine / 64)
    return image.reduce(fine)


def polygon(*points: Point, color: Any = RED) -> Part:
    return lambda pen, unit: pen.polygon([(x * unit, y * unit) for x, y in points], fill=color)


def spokes(
    count: int, x: float, y: float, *radii: float, turn: float = 0.0, color: Any = RED
) -> Part:
    """A regular polygon; with two radii a star."""
    radii = radii or (13,)
    angles = [2 * math.pi * step / (count * len(radii)) for step in range(count * len(radii))]
    return polygon(
        *(
            (x + radius * math.sin(angle + turn), y - radius * math.cos(angle + turn))
            for angle, radius in zip(angles, radii * count, strict=True)
        ),
        color=color,
    )


def disk(x: float = 32, y: float = 32, radius: float = 13, color: Any = RED) -> Part:
    return ellipse(x, y, radius, radius, color=color)


def ellipse(x: float, y: float, across: float, down: float, *, color: Any = RED) -> Part:
    box = (x - across, y - down, x + across, y + down)
    return lambda pen, unit: pen.ellipse([edge * unit for edge in box], fill=color)


def box(left: float, top: float, right: float, bottom: float, color: Any = RED) -> Part:
    return polygon((left, top), (right, top), (right, bottom), (left, bottom), color=color)


def square(x: float = 32, y: float = 32, half: float = 12, color: Any = RED) -> Part:
    return box(x - half, y - half, x + half, y + half, color=color)


def triangle(x: float = 32, y: float = 32, half: float = 13, color: Any = RED) -> Part:
    return polygon((x, y - half), (x + half, y + half), (x - half, y + half), color=color)


def cross(x: float = 32, y: float = 32, half: float = 13, color: Any = RED) -> Part:
    arm = half / 3
    bars = (
        box(x - half, y - arm, x + half, y + arm, color=color),
        box(x - arm, y - half, x + arm, y + half, color=color),
    )
    return lambda pen, unit: [bar(pen, unit) for bar in bars]


def outline(
    x: float, y: float, radius: float, width: float, color: Any = RED, *, kind: str = "ellipse"
) -> Part:
    edges = (x - radius, y - radius, x + radius, y + radius)
    return lambda pen, unit: getattr(pen, kind)(
        [edge * unit for edge in edges], outline=color, width=round(width * unit)
    )


def slice_of(start: float, end: float, x: float = 32, y: float = 32, color: Any = RED) -> Part:
    """A slice of a disk, in degrees clockwise from the right."""
    edges = (x - 13, y - 13, x + 13, y + 13)
    return lambda pen, unit: pen.pieslice([edge * unit for edge in edges], start, end, fill=color)


def rounded(radius: float, half: float = 12) -> Part:
    edges = (32 - half, 32 - half, 32 + half, 32 + half)
    return lambda pen, unit: pen.rounded_rectangle(
        [edge * unit for edge in edges], radius * unit, fill=RED
    )


def text(words: str, x: float, y: float, size: float = 10, color: Any = BLACK) -> Part:
    return lambda pen, unit: pen.text(
        (x * unit, y * unit), words, color, ImageFont.load_default(size * unit)
    )


def line(*ends: float, width: float = 2, color: Any = BLACK) -> Part:
    return lambda pen, unit: pen.line(
        [end * unit for end in ends], fill=color, width=round(width * unit)
    )


def specks(count: int, size: float, color: Any = GREEN, seed: int = 0) -> list[Part]:
    """Small squares outside the disk of radius 13 in the middle."""
    rng, parts = np.random.default_rng(seed), list[Part]()
    while len(parts) < count:
        x, y = rng.uniform(2, 62, 2)
        if math.hypot(x - 32, y - 32) > 17:
            parts.append(square(x, y, size / 2, color))
    return parts


def changed(image: Image.Image, change: Callable[[Any, Any, Any], Any]) -> Image.Image:
    """change: from pixels [h, w, 3] in [0, 1] and their x and y in [0, 1] to pixels."""
    pixels = np.asarray(image) / 255
    y, x = (np.indices(pixels.shape[:2]) + 0.5) / pixels.shape[0]
    values = np.clip(change(pixels, x[..., None], y[..., None]), 0, 1)
    return Image.fromarray(np.round(255 * values).astype(np.uint8))


def noisy(image: Image.Image, deviation: float, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return changed(image, lambda pixels, x, y: pixels + rng.normal(0, deviation, pixels.shape))


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def blurred(image: Image.Image, radius: float) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius))
