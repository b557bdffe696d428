"""Films of a coloured shape that moves, and the reward for `examples/moving.yaml`."""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from shapes import scenes
from shapes.scenes import SIDE, paint

from groupwise_messages.video import Video
from groupwise_verifiable.images.clauses import Included, fulfilment
from groupwise_verifiable.images.detection import Detection
from groupwise_verifiable.images.pixels import pixels
from groupwise_verifiable.images.shapes import find_shapes

FRAMES = 5
COLORS = ("red", "green", "blue")
SHAPES = ("disk", "triangle")
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
STEP = 1.0
"""Pixels from frame to frame that are a move."""
SPEED = 3.0
"""Pixels from frame to frame in the films that are drawn."""
RADIUS = 6.0

Row = dict[str, str]


def rows(colors: Sequence[str] = COLORS, shapes: Sequence[str] = SHAPES) -> Iterator[Row]:
    """Every prompt: a colour, a shape and a direction."""
    for color, shape, direction in product(colors, shapes, DIRECTIONS):
        yield {
            "prompt": f"the {color} {shape} moves {direction}",
            "color": color,
            "shape": shape,
            "direction": direction,
        }


class Prompts(Sequence[Row]):
    """The rows as a source of prompts."""

    def __init__(self) -> None:
        self.rows = [*rows()]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any, /) -> Any:
        return self.rows[index]


def draw(
    row: Row, chance: random.Random, *, speed: float = SPEED, radius: float = RADIUS
) -> np.ndarray:
    """A film of the row's scene, [frames, 3, side, side] uint8, at a random place."""
    x, y = DIRECTIONS[row["direction"]]
    middle = (FRAMES - 1) / 2
    along, across = (chance.uniform(-most, most) for most in (9 - middle * speed, 8))
    entry = {"color": row["color"], "class": row["shape"]}
    frames = []
    for number in range(FRAMES):
        way = along + (number - middle) * speed
        place = (SIDE / 2 + way * x + across * y, SIDE / 2 + way * y + across * x)
        frames.append(np.asarray(paint([entry], [place], chance, (radius, radius))))
    return np.stack(frames).transpose(0, 3, 1, 2)


def draw_any(chance: random.Random) -> np.ndarray:
    """A film of any scene, speed and size: also of those that no prompt asks for."""
    row = chance.choice([*rows(list(scenes.COLOURS), scenes.SHAPES)])
    return draw(row, chance, speed=chance.uniform(2.5, 3.5), radius=chance.uniform(4.5, 6.2))


def moves(
    completions: Sequence[Video],
    color: Sequence[str],
    shape: Sequence[str],
    direction: Sequence[str],
    **_: Any,
) -> list[float]:
    """How right each film is, 0.0 to 1.0: what its frames show times how it moves.

    The first is the mean of `image_contents` over the frames, the second the share of the steps
    from frame to frame that go where they should, less those that go back. A film that stands
    still gets 0.0, whatever it shows.
    """
    values = []
    for film, *wanted, way in zip(completions, color, shape, direction, strict=True):
        seen = [find_shapes(frame) for frame in pixels([*film], reward="moves")]
        clause = Included(**{"class": wanted[1], "color": wanted[0]})
        right = [fulfilment([clause], [], objects, unexpected=True, margin=0.0) for objects in seen]
        values.append(sum(right) / len(right) * progress(seen, DIRECTIONS[way]))
    return values


moves.judges = True


def progress(seen: Sequence[Sequence[Detection]], direction: tuple[int, int]) -> float:
    """The share of steps in a direction less those against it, 0.0 to 1.0.

    seen: the objects of each frame; a step counts between frames with one object each, if it is at
    least `STEP` pixels long and goes further along the direction than across it.
    """
    places = [_middle(objects[0]) if len(objects) == 1 else None for objects in seen]
    total = 0
    for before, after in pairwise(places):
        if before is None or after is None:
            continue
        x, y = (new - old for new, old in zip(after, before, strict=True))
        along, across = x * direction[0] + y * direction[1], x * direction[1] + y * direction[0]
        if abs(along) >= max(STEP, abs(across)):
            total += 1 if along > 0 else -1
    return max(0.0, total / (len(seen) - 1))


def _middle(one: Detection) -> tuple[float, float]:
    left, top, right, bottom = one.box
    return (left + right) / 2, (top + bottom) / 2
