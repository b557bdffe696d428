"""Wordings of two-object scenes: a few that the painter of `shapes` knows, and many others.

A prompt describes a scene in words that the painter was never trained on: synonyms, another order,
another language. The writer of `examples/chain.yaml` rewrites it, and has to find out by the reward
which wording the painter understands.
"""

import random
from collections.abc import Iterator
from typing import Any

SHAPES = {"disk": ("circle", "ball"), "square": ("box", "cube"), "triangle": ("pyramid", "wedge")}
COLOURS = {
    "red": ("crimson", "ruby"),
    "green": ("emerald", "olive"),
    "blue": ("azure", "navy"),
    "yellow": ("golden", "amber"),
}
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
SIDES = {
    "left of": "to the left of it",
    "right of": "to the right of it",
    "above": "over it",
    "below": "under it",
}
GERMAN = {
    "disk": "scheibe",
    "square": "quadrat",
    "triangle": "dreieck",
    "red": "rote",
    "green": "grüne",
    "blue": "blaue",
    "yellow": "gelbe",
    "left of": "links von",
    "right of": "rechts von",
    "above": "über",
    "below": "unter",
}
FRENCH = {
    "disk": "disque",
    "square": "carré",
    "triangle": "triangle",
    "red": "rouge",
    "green": "vert",
    "blue": "bleu",
    "yellow": "jaune",
    "left of": "à gauche de",
    "right of": "à droite de",
    "above": "sur",
    "below": "sous",
}
SHARES = (0.10, 0.05, 0.15, 0.15, 0.15, 0.15, 0.15, 0.10)
"""How often the base writer uses each of `rewritings`."""

Row = dict[str, Any]
Thing = tuple[str, str]
"""Colour and shape."""


def things(row: Row) -> tuple[Thing, str, Thing]:
    """The two objects of a row of `shapes`, and the relation of the first to the second."""
    first, second = row["include"]
    one, other = (first["color"], first["class"]), (second["color"], second["class"])
    return one, first["position"][0], other


def foreign(row: Row, chance: random.Random) -> Iterator[str]:
    """Four wordings of the scene that the painter was never trained on."""
    one, where, other = things(row)

    def rare(thing: Thing) -> tuple[str, str]:
        return chance.choice(COLOURS[thing[0]]), chance.choice(SHAPES[thing[1]])

    (first, shape), (second, other_shape) = rare(one), rare(other)
    yield f"there is a {other_shape} in {second} and {SIDES[where]} a {shape} in {first}"
    yield f"{shape} , {first} , {where} {other_shape} , {second}"
    yield f"paint something {first} , a {shape} ; it is {where} the {second} {other_shape}"
    yield f"{where} some {second} {other_shape} i see one {first} {shape}"


def rewritings(row: Row) -> list[str]:
    """Eight wordings of the scene. The painter knows the first two; the sixth is a wrong scene."""
    one, where, other = things(row)
    (first, shape), (second, other_shape) = one, other
    rare = [f"a {COLOURS[c][0]} {SHAPES[s][0]}" for c, s in (one, other)]
    german = [f"{GERMAN[c]} {GERMAN[s]}" for c, s in (one, other)]
    french = [f"{FRENCH[s]} {FRENCH[c]}" for c, s in (one, other)]
    return [
        f"a {first} {shape} {where} a {second} {other_shape}",
        f"a {second} {other_shape} {OPPOSITE[where]} a {first} {shape}",
        f"a {shape} {first} {where} a {other_shape} {second}",
        f"{rare[0]} {where} {rare[1]}",
        f"{german[0]} {GERMAN[where]} {german[1]}",
        f"a {first} {shape} {OPPOSITE[where]} a {second} {other_shape}",
        f"{french[0]} {FRENCH[where]} {french[1]}",
        f"a {first} {shape} and somewhere near it one can see a {second} {other_shape} too",
    ]
