"""Pictures for `image_contents` with the detector of shapes: right ones, and wrong ones.

A picture is wrong if a person would say that it shows something else, or more, than the row asks.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from PIL import Image
from scene_parts import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    RED,
    WHITE,
    YELLOW,
    blurred,
    box,
    changed,
    cross,
    disk,
    draw,
    ellipse,
    jpeg,
    line,
    noisy,
    outline,
    polygon,
    rounded,
    slice_of,
    specks,
    spokes,
    square,
    text,
    triangle,
)

Include = list[dict[str, Any]]
Judged = tuple[str, Image.Image, Include]


def wanted(kind: str, color: str = "red", count: int = 1) -> Include:
    return [{"class": kind, "count": count, "color": color}]


RED_LEFT_OF_BLUE: Include = [
    {"class": "disk", "color": "red", "position": ["left of", 1]},
    {"class": "square", "color": "blue"},
]
ORANGE_RED, TEAL, VIOLET = (245, 105, 45), (25, 170, 130), (95, 65, 205)

# For one red disk: more parts than it, at any resolution.
BESIDE_A_DISK: dict[str, list[Any]] = {
    "with a green square in it": [disk(), square(half=4, color=GREEN)],
    "with a small green square in it": [disk(), square(half=2.5, color=GREEN)],
    "with a white hole": [disk(), disk(radius=4, color=WHITE)],
    "with a small hole": [disk(), disk(36, 28, 2.5, WHITE)],
    "with six holes": [
        disk(),
        *(disk(32 + 7 * math.sin(i), 32 + 7 * math.cos(i), 1.5, WHITE) for i in range(6)),
    ],
    "a ring": [outline(32, 32, 13, 4)],
    "a thick ring": [outline(32, 32, 13, 9)],
    "an outline": [outline(32, 32, 13, 1.5)],
    "in a ring": [disk(radius=9), outline(32, 32, 15, 2)],
    "a target": [disk(), disk(radius=9, color=WHITE), disk(radius=5)],
    "with a blue outline": [disk(), outline(32, 32, 13, 2, BLUE)],
    "with a thin black outline": [disk(radius=20), outline(32, 32, 20, 1, BLACK)],
    "beside forty green specks": [disk(), *specks(40, 2)],
    "beside forty red specks": [disk(), *specks(40, 2, RED)],
    "beside ten specks": [disk(), *specks(10, 2, BLUE)],
    "beside three specks": [disk(), *specks(3, 2.5, BLACK)],
    "beside a tiny disk": [disk(), disk(54, 54, 2)],
    "beside eight tiny disks": [disk(), *(disk(8 + 7 * i, 57, 2) for i in range(8))],
    "above a line of text": [disk(), text("a red disk", 6, 48)],
    "above small text": [disk(), text("a red disk", 12, 52, 6)],
    "above grey text": [disk(), text("a red disk", 6, 48, color=(190, 190, 190))],
    "under a word": [disk(), text("RED", 23, 27, 9, WHITE)],
    "crossed out": [disk(), line(14, 14, 50, 50)],
    "on a thin line": [disk(), line(0, 52, 64, 52, width=1)],
    "on a stick": [disk(32, 24, 11), line(32, 34, 32, 60, width=2, color=RED)],
    "in a grid": [
        *(line(0, 8 * i, 64, 8 * i, width=1, color=GRAY) for i in range(8)),
        disk(),
    ],
    "in a frame": [box(0, 0, 64, 64, BLUE), box(3, 3, 61, 61, WHITE), disk()],
    "in an open frame": [box(0, 0, 64, 3, BLACK), box(0, 0, 3, 64, BLACK), disk()],
    "in a thin frame": [outline(32, 32, 26, 1, BLACK, kind="rectangle"), disk()],
    "beside faint pink": [disk(20, 20, 11), disk(46, 46, 13, (255, 215, 215))],
    "overlapping another": [disk(28, 32, 12), disk(36, 32, 12)],
    "nearly on another": [disk(29.5, 32, 12), disk(34.5, 32, 12)],
    "overlapping a blue one": [disk(28, 32, 12), disk(40, 32, 12, BLUE)],
    "merged with a square": [disk(26, 32, 11), square(40, 36, 10)],
    "two halves apart": [slice_of(90, 270, 30), slice_of(270, 90, 34)],
    "half blue": [disk(), slice_of(90, 270, color=BLUE)],
    "pac-man": [slice_of(30, 330)],
    "a crescent": [disk(), disk(40, 32, 11, WHITE)],
    "cut by the edge": [disk(3, 32, 14)],
    "a third cut off": [disk(32, 4, 13)],
    "a hexagon": [spokes(6, 32, 32)],
    "a turned hexagon": [spokes(6, 32, 32, turn=math.pi / 6)],
    "a large hexagon": [spokes(6, 32, 32, 24)],
    "a pentagon": [spokes(5, 32, 32)],
    "a large octagon": [spokes(8, 32, 32, 24, turn=math.pi / 8)],
    "a star of five": [spokes(5, 32, 32, 15, 6)],
    "a star of twelve": [spokes(12, 32, 32, 15, 10)],
    "a gear": [spokes(10, 32, 32, 15, 12.5)],
    "a flower": [
        disk(32 + 7 * math.sin(i), 32 + 7 * math.cos(i), 6.5) for i in np.arange(6) * 1.05
    ],
    "an ellipse": [ellipse(32, 32, 16, 11)],
    "a tall ellipse": [ellipse(32, 32, 10, 14)],
    "a rounded square": [rounded(5)],
    "a very rounded square": [rounded(8)],
    "a drop": [disk(32, 36, 11), polygon((32, 14), (23, 30), (41, 30))],
    "a heart": [disk(25, 28, 8), disk(39, 28, 8), polygon((18, 31), (46, 31), (32, 48))],
    "two copies": [disk(18), disk(46)],
    "nine copies": [disk(12 + 20 * (i % 3), 12 + 20 * (i // 3), 7) for i in range(9)],
    "covering all": [disk(radius=60)],
    "covering nearly all": [disk(radius=38)],
    "of mixed colour": [disk(color=ORANGE_RED)],
    "with a dark half": [disk(), slice_of(90, 270, color=(120, 20, 20))],
}

# For another shape or colour than a red disk.
OTHERS: dict[str, tuple[Include, list[Any]]] = {
    "square, a diamond": (wanted("square"), [spokes(4, 32, 32, 16)]),
    "square, turned by 20 degrees": (wanted("square"), [spokes(4, 32, 32, 16, turn=1.134)]),
    "square, rounded": (wanted("square"), [rounded(5)]),
    "square, with a hole": (wanted("square"), [square(), square(half=3, color=WHITE)]),
    "square, an outline": (wanted("square"), [outline(32, 32, 13, 2, kind="rectangle")]),
    "square, a bar": (wanted("square"), [box(16, 24, 48, 40)]),
    "square, a trapezoid": (wanted("square"), [polygon((24, 20), (40, 20), (46, 44), (18, 44))]),
    "square, leaning": (wanted("square"), [polygon((25, 20), (49, 20), (41, 44), (17, 44))]),
    "square, without a corner": (wanted("square"), [square(), box(38, 20, 45, 27, WHITE)]),
    "square, striped": (
        wanted("square"),
        [square(), *(box(20, 20 + 4 * i, 44, 22 + 4 * i, WHITE) for i in range(6))],
    ),
    "square, with a chimney": (wanted("square"), [square(32, 36), box(24, 16, 28, 25)]),
    "triangle, cut off": (wanted("triangle"), [polygon((27, 22), (37, 22), (46, 45), (18, 45))]),
    "triangle, with a hole": (wanted("triangle"), [triangle(), disk(32, 37, 3.5, WHITE)]),
    "triangle, an outline": (wanted("triangle"), [triangle(), triangle(32, 34, 8, WHITE)]),
    "triangle, an arrow": (wanted("triangle"), [triangle(32, 26, 11), box(28, 36, 36, 52)]),
    "triangle, a house": (wanted("triangle"), [triangle(32, 22, 10), box(22, 31, 42, 44)]),
    "triangle, a dart": (
        wanted("triangle"),
        [polygon((32, 19), (45, 45), (32, 36), (19, 45))],
    ),
    "cross, turned": (
        wanted("cross"),
        [line(20, 20, 44, 44, width=8, color=RED), line(44, 20, 20, 44, width=8, color=RED)],
    ),
    "cross, a T": (wanted("cross"), [box(19, 19, 45, 28), box(28, 19, 36, 45)]),
    "cross, a star of four": (wanted("cross"), [spokes(4, 32, 32, 16, 5)]),
    "cross, a dot in it": (wanted("cross"), [cross(), disk(radius=3, color=BLUE)]),
    "green, teal": (wanted("disk", "green"), [disk(color=TEAL)]),
    "blue, violet": (wanted("disk", "blue"), [disk(color=VIOLET)]),
    "two disks, joined": (
        wanted("disk", count=2),
        [disk(18, radius=10), disk(46, radius=10), line(18, 32, 46, 32, color=RED)],
    ),
    "two disks, one hollow": (
        wanted("disk", count=2),
        [disk(18, radius=10), disk(46, radius=10), disk(46, 32, 4, WHITE)],
    ),
    "two disks and specks": (
        wanted("disk", count=2),
        [disk(18, radius=10), disk(46, radius=10), *specks(12, 2)],
    ),
    "red left of blue, and text": (
        RED_LEFT_OF_BLUE,
        [disk(18, radius=10), square(46, color=BLUE), text("left of", 16, 48, 9)],
    ),
    "red left of blue, and a dot between": (
        RED_LEFT_OF_BLUE,
        [disk(16, radius=10), square(48, color=BLUE), disk(31, 32, 2, GREEN)],
    ),
    "red left of blue, a green dot in blue": (
        RED_LEFT_OF_BLUE,
        [disk(16, radius=10), square(48, color=BLUE), disk(48, 32, 3, GREEN)],
    ),
}


def wrong() -> list[Judged]:
    red_disk = wanted("disk")
    pictures: list[Judged] = []
    for side in (32, 64, 256):
        for name, parts in BESIDE_A_DISK.items():
            pictures.append((f"{name}, {side}", draw(*parts, side=side), red_disk))
        for name, (include, parts) in OTHERS.items():
            pictures.append((f"{name}, {side}", draw(*parts, side=side), include))
        for name, image in textures(side).items():
            pictures.append((f"{name}, {side}", image, red_disk))
    return pictures


def textures(side: int) -> dict[str, Image.Image]:
    """Pictures of one red disk whose pixels, or whose background's, are not plain."""
    plain = draw(disk(), side=side)
    rng = np.random.default_rng(0)
    inside = (np.asarray(plain)[..., 1:2] < 128).astype(float)
    grain = rng.random((side, side, 1))
    half, quarter = np.array([1.0, 0.55, 0.0]), np.array(GREEN) / 255
    stripes = (np.indices((side, side)).sum(axis=0) // max(side // 32, 1) % 2)[..., None]
    return {
        "on a gradient": changed(plain, lambda p, x, y: p * (1 - 0.6 * x * (1 - inside))),
        "on a checkerboard": changed(plain, lambda p, x, y: p - 0.25 * stripes * (1 - inside)),
        "on coloured noise": changed(
            plain, lambda p, x, y: p - 0.5 * (1 - inside) * rng.random(p.shape)
        ),
        "on salt and pepper": changed(
            plain, lambda p, x, y: p * (1 - (grain > 0.95) * (1 - inside))
        ),
        "with pepper": changed(plain, lambda p, x, y: p * (1 - (grain > 0.93) * inside)),
        "red to orange": changed(
            plain, lambda p, x, y: p * (1 - inside) + inside * (p * (1 - x) + half * x)
        ),
        "red to green": changed(
            plain, lambda p, x, y: p * (1 - inside) + inside * (p * (1.2 - x) + quarter * (x - 0.2))
        ),
        "fading": changed(
            plain, lambda p, x, y: p + (1 - p) * inside * np.clip(2.4 * y - 0.7, 0, 1)
        ),
        "with green stripes": changed(plain, lambda p, x, y: p + (quarter - p) * inside * stripes),
        "melted": blurred(draw(disk(24, 30, 7), square(38, 36, 8), side=side), side / 24),
        "in fog": blurred(plain, side / 10),
    }


def right() -> list[Judged]:
    pictures: list[Judged] = []
    kinds = {"disk": disk, "square": square, "triangle": triangle, "cross": cross}
    colors = {"red": RED, "green": GREEN, "blue": BLUE, "yellow": YELLOW}
    for (kind, part), (color, ink) in product(kinds.items(), colors.items()):
        for side, fine in ((32, 4), (64, 1), (256, 4)):
            image = draw(part(30, 34, 12, ink), side=side, fine=fine)
            pictures.append((f"{color} {kind}, {side}, {fine}", image, wanted(kind, color)))
    for (kind, part), side in product(kinds.items(), (32, 64, 256)):
        plain = draw(part(33, 31, 12, RED), side=side)
        changes = {
            "noise": noisy(plain, 0.04),
            "JPEG 95": jpeg(plain, 95),
            "JPEG 85": jpeg(plain, 85),
            "JPEG 75": jpeg(plain, 75),
            "soft": blurred(plain, side / 40),
            "enlarged": plain.resize((2 * side, 2 * side), Image.Resampling.BICUBIC),
            "shaded": changed(plain, lambda p, x, y: p * (1 - 0.08 * x)),
            "off-white": changed(plain, lambda p, x, y: p * np.array([0.96, 0.94, 0.9])),
            "small": draw(part(40, 24, 9, RED), side=side),
            "large": draw(part(32, 32, 28, RED), side=side),
            "on black": draw(part(32, 32, 13, RED), side=side, background=BLACK),
            "on grey": draw(part(32, 32, 13, RED), side=side, background=GRAY),
            "on blue": draw(part(32, 32, 13, RED), side=side, background=BLUE),
            "nearly at the edge": draw(part(15, 49, 13, RED), side=side),
        }
        for name, image in changes.items():
            pictures.append((f"{kind}, {name}, {side}", image, wanted(kind)))
        two = draw(part(17, 33, 11, RED), part(47, 30, 12, RED), side=side)
        pictures.append((f"two of {kind}, {side}", two, wanted(kind, count=2)))
    for side in (32, 64, 256):
        pair = draw(disk(18, 30, 10), square(46, 34, 11, BLUE), side=side)
        pictures.append((f"a pair, {side}", pair, RED_LEFT_OF_BLUE))
        near = draw(disk(22, 30, 10), square(44, 34, 12, BLUE), side=side)
        pictures.append((f"a pair that touches, {side}", near, RED_LEFT_OF_BLUE))
    return pictures
