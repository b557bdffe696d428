"""What is wrong with a picture, in words, by a rule that knows what is in it: for the base models.

A complaint is "no red disk", "not two", "too many", "not left of", or RIGHT where nothing is wrong.
The eyes say first what they see: "blue disk left of red square: no green square".
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from shapes.make_base import Captions, draw_rows
from shapes.scenes import COLOURS, RELATIONS, SHAPES, Row, rows

RIGHT = "right"
WORDS = (RIGHT, "no", "not", "too many", "two", "and", *COLOURS, *SHAPES, *RELATIONS)
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


def complaint(asked: Row, shown: Row) -> str:
    """The first thing that is wrong with a picture of one scene for the prompt of another one."""
    wanted, there = _objects(asked), _objects(shown)
    for colour, shape in wanted:
        if not there[colour, shape]:
            return f"no {colour} {shape}"
    if any(there[own] < number for own, number in wanted.items()):
        return "not two"
    if there != wanted:
        return "too many"
    relation = _relation(asked)
    return RIGHT if relation in (None, _relation(shown, of=asked)) else f"not {relation}"


def said(asked: Row, shown: Row) -> str:
    """What is in a picture, and the complaint."""
    return f"{seen(shown)}: {complaint(asked, shown)}"


def seen(shown: Row) -> str:
    """What is in a picture: "red disk left of blue square", from left to right or from above."""
    named = [" ".join(own) for own in _objects(shown).elements()]
    relation = _relation(shown)
    if relation in ("right of", "below"):
        named, relation = named[::-1], OPPOSITE[relation]
    return f" {relation or 'and'} ".join(named)


def remedies(row: Row) -> list[str]:
    """The complaints about other pictures that a picture of this scene would answer."""
    named = [f"no {colour} {shape}" for colour, shape in _objects(row)]
    if row["tag"] == "counting":
        return [*named, "not two"]
    relation = _relation(row)
    return [*named, "too many"] if relation is None else [*named, f"not {relation}"]


def pairs(training: Sequence[Row], chance: random.Random) -> Iterator[tuple[Row, Row]]:
    """Scenes to ask for and to show, for ever: four in ten are the same, and most of the others
    differ in a word."""
    known, mistaken = {row["prompt"]: row for row in rows()}, Captions([], chance).mistaken
    asked_for = {row["prompt"] for row in training}
    kinds = {"same": 0.4, "word": 0.3, "relation": 0.15, "other": 0.15}
    while True:
        (kind,) = chance.choices([*kinds], [*kinds.values()])
        (shown, other) = draw_rows(training, 2, chance)
        prompt = shown["prompt"]
        if kind == "word":
            prompt = mistaken(prompt)
        elif kind == "relation":
            prompt = prompt.replace(_relation(shown) or prompt, chance.choice([*RELATIONS]))
        elif kind == "other":
            prompt = other["prompt"]
        if prompt in asked_for and (kind == "same") == (prompt == shown["prompt"]):
            yield known[prompt], shown


def _objects(row: Row) -> Counter[tuple[str, str]]:
    return Counter({(own["color"], own["class"]): own["count"] for own in row["include"]})


def _relation(row: Row, of: Row | None = None) -> str | None:
    """Where the first object is, seen from the second; None if the scene does not say.

    of: a scene of the same objects, whose first one is meant.
    """
    first = row["include"][0]
    if "position" not in first:
        return None
    relation: str = first["position"][0]
    same = of is None or _named(of["include"][0]) == _named(first)
    return relation if same else OPPOSITE[relation]


def _named(entry: Row) -> tuple[str, str]:
    return entry["color"], entry["class"]
