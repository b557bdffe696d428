"""Questions about pictures of one to four coloured shapes, for `examples/count_shapes.yaml`."""

import random
from collections.abc import Sequence
from typing import Any

from shapes.scenes import COLOURS, PLURALS, SHAPES, paint

CORNERS = [(8, 8), (24, 8), (8, 24), (24, 24)]
"""The middles of a picture's quarters, in reading order."""
ANSWERS = [*map(str, range(len(CORNERS) + 1)), *COLOURS, *SHAPES]
KINDS = ("colour", "shape")
"""What questions ask for beside a number."""

Row = dict[str, Any]
Thing = tuple[str, str]
"""Colour and shape."""


class Questions(Sequence[Row]):
    """Rows with a picture, a question about it, its answer and the `scene`: the objects in it.

    size: how many rows; seed: of the pictures and questions; most: objects in a picture;
        kinds: some of `KINDS`.
    """

    key = "scene"

    def __init__(
        self,
        size: int = 3000,
        seed: int = 0,
        most: int = len(CORNERS),
        kinds: Sequence[str] = KINDS,
    ) -> None:
        self.size, self.seed, self.most, self.kinds = size, seed, most, kinds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any, /) -> Any:
        chance = random.Random(f"{self.seed} {range(self.size)[index]}")
        things = drawn_things(chance, self.most)
        text, answer = question(things, chance, self.kinds)
        return {
            "prompt": [{"role": "user", "content": text}],
            "image": picture(things, chance),
            "answer": answer,
            "scene": scene(things),
        }


def drawn_things(chance: random.Random, most: int = len(CORNERS)) -> list[Thing]:
    """One object up to `most`; half of them look like the one before, so that there is something to
    count."""
    things: list[Thing] = []
    for _ in range(chance.randint(1, most)):
        new = (chance.choice(list(COLOURS)), chance.choice(SHAPES))
        things.append(chance.choice([new, things[-1]]) if things else new)
    chance.shuffle(things)
    return things


def picture(things: Sequence[Thing], chance: random.Random) -> Any:
    """A picture with each object somewhere in a quarter of its own, in reading order."""
    corners = sorted(chance.sample(range(len(CORNERS)), len(things)))
    places = [
        (CORNERS[corner][0] + chance.uniform(-1.5, 1.5), CORNERS[corner][1] + chance.uniform(-1, 1))
        for corner in corners
    ]
    return paint([{"color": one, "class": shape} for one, shape in things], places, chance)


def question(
    things: Sequence[Thing], chance: random.Random, kinds: Sequence[str] = KINDS
) -> tuple[str, str]:
    """A question about the objects, and its answer."""
    colour, shape = chance.choice(things)
    asked = []
    if "colour" in kinds and sum(own == shape for _, own in things) == 1:
        asked.append((f"What colour is the {shape}?", colour))
    if "shape" in kinds and sum(own == colour for own, _ in things) == 1:
        asked.append((f"What shape is the {colour} one?", shape))
    asked.append(_count(things, chance))
    return chance.choice(asked)


def _count(things: Sequence[Thing], chance: random.Random) -> tuple[str, str]:
    """A question for a number; one in five is for something that is not there."""
    kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    absent = chance.random() < 0.2
    colour, shape = chance.choice([kind for kind in kinds if (kind not in things) == absent])
    number = sum(thing == (colour, shape) for thing in things)
    return _how_many(colour, shape), str(number)


def _how_many(colour: str, shape: str) -> str:
    return f"How many {colour} {PLURALS[shape]}?"


def thought(things: Sequence[Thing], text: str) -> str:
    """What is in a picture, in reading order; what the question asks to count is numbered."""
    parts, number = [], 0
    for colour, shape in things:
        is_counted = text == _how_many(colour, shape)
        number += is_counted
        parts.append(f"{colour} {shape} {number}" if is_counted else f"{colour} {shape}")
    return ", ".join(parts)


def scene(things: Sequence[Thing]) -> str:
    """The name of a scene, whatever the order of its objects."""
    return ", ".join(f"{colour} {shape}" for colour, shape in sorted(things))
