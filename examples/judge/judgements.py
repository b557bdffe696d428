"""Judgements of two pictures for one caption, as UnifiedReward-Think writes them, in small.

    <think>Image 1: red disk left of blue square: right
    Image 2: red disk above blue square: not left of</think>
    <answer>Image 1 is better</answer>

Of each picture the judge says what it sees, and what is wrong with it: the words of the eyes in
`examples/draw_look`. The picture that is right is the better one.
"""

import random
from collections.abc import Mapping, Sequence

from draw_look import complaints
from shapes import scenes
from shapes.scenes import COLOURS, SHAPES, Row

ANSWERS = ("Image 1 is better", "Image 2 is better")
TAGS = ("<answer>", "</answer>")
RELATIONS = ("left of", "above")
"""Those of the captions. What is seen is told from left to right or from above, so that a right
picture is told in the order of its caption."""
WORDS = (*complaints.WORDS, "a", "Image", "Caption", "is better")
CAPTIONS = [
    row
    for row in scenes.rows()
    if row["tag"] == "position" and row["include"][0]["position"][0] in RELATIONS
]


def question(caption: str) -> str:
    """As in wording.txt, which tells `generative_ranking` how to ask."""
    return f"Caption: {caption}"


def line(number: int, caption: Row, picture: Row) -> str:
    """What is said of one of two pictures, the one of this number."""
    return f"Image {number}: {complaints.said(caption, picture)}"


def judgement(caption: Row, pictures: Sequence[Row]) -> str:
    """The judgement of two pictures of these scenes, of which one is the caption's."""
    lines = [line(number, caption, own) for number, own in enumerate(pictures, start=1)]
    answer = ANSWERS[pictures[1]["prompt"] == caption["prompt"]]
    return "<think>" + "\n".join(lines) + f"</think>\n<answer>{answer}</answer>"


def pair(caption: Row, known: Mapping[str, Row], chance: random.Random) -> list[Row]:
    """The caption's scene and another one, in any order. known: all scenes that may be shown."""
    return chance.sample([caption, _other(caption, known, chance)], 2)


def _other(caption: Row, known: Mapping[str, Row], chance: random.Random) -> Row:
    """A scene that differs as the pictures of a painter do: a word or two are others, or the two
    objects have changed places."""
    while True:
        words = caption["prompt"].replace(" of ", "_of ").split()
        if chance.random() < 0.2:
            words = [*words[4:], words[3], *words[:3]]
        else:
            for place in chance.sample((1, 2, 3, 5, 6), chance.choice((1, 1, 2))):
                words[place] = chance.choice(_KINDS[place])
        other = " ".join(words).replace("_of", " of")
        if other in known and other != caption["prompt"]:
            return known[other]


_KINDS = {
    **dict.fromkeys((1, 5), tuple(COLOURS)),
    **dict.fromkeys((2, 6), SHAPES),
    3: tuple(name.replace(" ", "_") for name in RELATIONS),
}
"""By place in a caption ("a red disk left_of a blue square"), the words that can stand there."""
