"""Pictures of two shapes, instructions to edit one of them, and the reward for
`examples/recolor.yaml`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import dist
from typing import Any

from PIL import Image, ImageDraw
from shapes.scenes import COLOURS, SHAPES, SIDE, paint

from groupwise_verifiable.images.detection import Detection
from groupwise_verifiable.images.pixels import pixels
from groupwise_verifiable.images.shapes import find_shapes

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
STEP = 8.0
"""Pixels of a move."""
EDGE = 6.0
"""Pixels from a shape's middle to the picture's edge, or more."""
EXACT, FAR = 2.0, 4.0
"""Pixels from its place at which a shape is still right, and at which it is wrong."""
SOFT = 2.0
"""Pixels around a shape that a mask leaves free, since an autoencoder blurs edges."""

WANTED = ("shape", "color", "place")
"""Columns with what a thing should become."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Thing:
    """A shape of a picture; place: its middle, in pixels from left and top."""

    color: str
    shape: str
    place: tuple[float, float]


@dataclass(frozen=True)
class Edit:
    """An instruction for a picture of two things of different shapes.

    after: what becomes of the first of them; radius: of both, in pixels.
    """

    instruction: str
    before: tuple[Thing, Thing]
    after: Thing
    radius: float

    @property
    def scene(self) -> str:
        """What is asked of which shapes, wherever they are."""
        first, second = sorted(f"{thing.color} {thing.shape}" for thing in self.before)
        return f"{first}, {second}: {self.instruction}"

    def source(self, chance: random.Random) -> Image.Image:
        return drawn(self.before, self.radius, chance)

    def result(self, chance: random.Random) -> Image.Image:
        """The source when it is edited as asked."""
        return drawn([self.after, self.before[1]], self.radius, chance)

    @property
    def mask(self) -> Image.Image:
        """White where the thing is and where it should be, black elsewhere."""
        mask = Image.new("L", (SIDE, SIDE))
        half = self.radius + SOFT
        for x, y in (self.before[0].place, self.after.place):
            ImageDraw.Draw(mask).rectangle((x - half, y - half, x + half, y + half), fill=255)
        return mask


def drawn(things: Sequence[Thing], radius: float, chance: random.Random) -> Image.Image:
    entries = [{"color": thing.color, "class": thing.shape} for thing in things]
    return paint(entries, [thing.place for thing in things], chance, (radius, radius))


def draw_edit(chance: random.Random) -> Edit:
    """A random edit; as many recolour as move, and nothing touches or leaves the picture."""
    change = chance.choice([_recolored, _moved])
    while True:
        radius = chance.uniform(4.5, 5.5)
        one, other = (
            Thing(chance.choice([*COLOURS]), shape, place(chance))
            for shape in chance.sample(SHAPES, 2)
        )
        instruction, after = change(one, chance)
        if _inside(after) and apart(one, other, radius) and apart(after, other, radius):
            return Edit(instruction, (one, other), after, radius)


def place(chance: random.Random) -> tuple[float, float]:
    return chance.uniform(EDGE, SIDE - EDGE), chance.uniform(EDGE, SIDE - EDGE)


def apart(one: Thing, other: Thing, radius: float) -> bool:
    """Whether two pixels or more are between the boxes of two things."""
    gaps = (abs(a - b) for a, b in zip(one.place, other.place, strict=True))
    return max(gaps) >= 2 * (radius + 1)


def _recolored(thing: Thing, chance: random.Random) -> tuple[str, Thing]:
    color = chance.choice([name for name in COLOURS if name != thing.color])
    return f"make the {thing.shape} {color}", replace(thing, color=color)


def _moved(thing: Thing, chance: random.Random) -> tuple[str, Thing]:
    direction = chance.choice([*DIRECTIONS])
    x, y = (at + STEP * way for at, way in zip(thing.place, DIRECTIONS[direction], strict=True))
    return f"move the {thing.shape} {direction}", replace(thing, place=(x, y))


def _inside(thing: Thing) -> bool:
    return all(EDGE <= at <= SIDE - EDGE for at in thing.place)


class Prompts(Sequence[Row]):
    """Rows with an instruction, its `image` and `mask`, and what the thing should become.

    size: how many rows; seed: of the pictures and instructions.
    """

    key = "scene"

    def __init__(self, size: int = 2000, seed: int = 0) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any, /) -> Any:
        chance = random.Random(f"{self.seed} {range(self.size)[index]}")
        edit = draw_edit(chance)
        return {
            "prompt": edit.instruction,
            "image": edit.source(chance),
            "mask": edit.mask,
            "scene": edit.scene,
            **{name: getattr(edit.after, name) for name in WANTED},
        }


def follows(
    completions: Sequence[Image.Image],
    shape: Sequence[str],
    color: Sequence[str],
    place: Sequence[tuple[float, float]],
    **_: Any,
) -> list[float]:
    """Whether the thing became what was asked, 0.0 to 1.0, whatever else the picture shows.

    There must be one of its shape, with the colour that it should have, and its middle where it
    should be: 1.0 up to `EXACT` pixels from there, and linearly 0.0 from `FAR` pixels on. So a
    source that was left as it is gets 0.0, and so does a copy of the thing in another place.
    """
    rows = zip(pixels(completions, reward="follows"), shape, color, place, strict=True)
    return [_followed(find_shapes(image), *wanted) for image, *wanted in rows]


follows.judges = True


def _followed(seen: Sequence[Detection], shape: str, color: str, place: Sequence[float]) -> float:
    own = [one for one in seen if one.label == shape]
    if len(own) != 1 or own[0].color != color:
        return 0.0
    left, top, right, bottom = own[0].box
    away = dist(((left + right) / 2, (top + bottom) / 2), place)
    return min(1.0, max(0.0, (FAR - away) / (FAR - EXACT)))
