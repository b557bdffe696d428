"""Sums in words, easy enough for a model of 135M parameters to be right now and then.

"Ada has 12 coins. Ada buys 7 more. How many coins does Ada have now?"
"""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "stickers")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def word_sums(count: int) -> list[dict[str, Any]]:
    """Rows with a question, as messages, and the answer; always the same ones."""
    draw = random.Random(0)
    return [_row(draw) for _ in range(count)]


def _row(draw: random.Random) -> dict[str, Any]:
    who, what = draw.choice(PEOPLE), draw.choice(THINGS)
    total, number = draw.randint(2, 20), draw.randint(2, 9)
    less = number < total and draw.random() < 0.5
    change = f"gives {number} away" if less else f"buys {number} more"
    text = f"{who} has {total} {what}. {who} {change}. How many {what} does {who} have now?"
    return row(text, str(total - number if less else total + number))


def row(question: str, answer: str) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": question}], "answer": answer}


def right(
    completions: Sequence[Sequence[Mapping[str, str]]], answer: Sequence[str], **_: Any
) -> list[float]:
    """1 where the last number of the completion is the answer."""
    pairs = zip(completions, answer, strict=True)
    return [float(_last_number(messages[-1]["content"]) == gold) for messages, gold in pairs]


def _last_number(text: str) -> str | None:
    numbers = NUMBER.findall(text)
    return numbers[-1].replace(",", "").removesuffix(".00") if numbers else None
