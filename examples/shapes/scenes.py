"""Scenes of coloured shapes: prompts with GenEval's metadata, and pictures of them."""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from PIL import Image, ImageDraw

SIDE = 32
SHAPES = ("disk", "square", "triangle")
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 200, 40),
}
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
PLURALS = {"disk": "disks", "square": "squares", "triangle": "triangles"}
_FINE = 4  # pictures are drawn so many times larger, and averaged down

Row = dict[str, Any]


def rows() -> Iterator[Row]:
    """Every prompt: one object, two identical objects, and two different ones side by side."""
    kinds = list(product(COLOURS, SHAPES))
    for colour, shape in kinds:
        yield _row("single_object", f"a {colour} {shape}", [_entry(shape, colour, 1)])
    for colour, shape in kinds:
        yield _row("counting", f"two {colour} {PLURALS[shape]}", [_entry(shape, colour, 2)])
    for (one, shape), (other, second) in product(kinds, kinds):
        if (one, shape) == (other, second):
            continue
        for relation in RELATIONS:
            prompt = f"a {one} {shape} {relation} a {other} {second}"
            first = _entry(shape, one, 1) | {"position": [relation, 1]}
            yield _row("position", prompt, [first, _entry(second, other, 1)])


def _entry(shape: str, colour: str, count: int) -> Row:
    return {"class": shape, "count": count, "color": colour}


def _row(tag: str, prompt: str, include: list[Row]) -> Row:
    return {"prompt": prompt, "tag": tag, "include": include}


def draw(row: Row, chance: random.Random) -> Image.Image:
    """A picture of the row's scene, with random sizes and places."""
    objects = [entry for entry in row["include"] for _ in range(entry["count"])]
    return paint(objects, _places(row, len(objects), chance), chance)


def paint(
    objects: Sequence[Row],
    places: Sequence[tuple[float, float]],
    chance: random.Random,
    radii: tuple[float, float] = (4.5, 6.2),
) -> Image.Image:
    """A picture of objects of random sizes; places: their centres in pixels; radii: the least and
    the largest."""
    picture = Image.new("RGB", (SIDE * _FINE, SIDE * _FINE), "white")
    canvas = ImageDraw.Draw(picture)
    for entry, (x, y) in zip(objects, places, strict=True):
        _draw_one(canvas, entry, x, y, chance.uniform(*radii))
    return picture.resize((SIDE, SIDE), Image.Resampling.BOX)


def _places(row: Row, count: int, chance: random.Random) -> list[tuple[float, float]]:
    """Centres in pixels; those of a pair are on opposite sides of the middle."""
    if count == 1:
        return [(chance.uniform(8, 24), chance.uniform(8, 24))]
    relation = row["include"][0].get("position", [chance.choice(list(RELATIONS))])[0]
    across, down = RELATIONS[relation]
    middle, apart = (16.0, 16.0), chance.uniform(7.5, 8.5)
    jitter = [(chance.uniform(-1, 1), chance.uniform(-1, 1)) for _ in range(2)]
    shift = chance.uniform(-5, 5)
    return [
        (
            middle[0] + sign * across * apart + (shift if not across else 0) + dx,
            middle[1] + sign * down * apart + (shift if not down else 0) + dy,
        )
        for sign, (dx, dy) in zip((1, -1), jitter, strict=True)
    ]


def _draw_one(canvas: ImageDraw.ImageDraw, entry: Row, x: float, y: float, radius: float) -> None:
    colour, shape = COLOURS[entry["color"]], entry["class"]
    left, top, right, bottom = (_FINE * v for v in (x - radius, y - radius, x + radius, y + radius))
    if shape == "disk":
        canvas.ellipse((left, top, right, bottom), fill=colour)
    elif shape == "square":
        inset = 0.08 * (right - left)
        canvas.rectangle((left + inset, top + inset, right - inset, bottom - inset), fill=colour)
    else:
        canvas.polygon([((left + right) / 2, top), (right, bottom), (left, bottom)], fill=colour)
