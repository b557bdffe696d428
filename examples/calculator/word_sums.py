"""Sums and differences in words: the questions of `examples/smollm_tools.yaml`."""

import random
from typing import Any

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "stickers")
SHOWN = [
    {"role": "system", "content": "You solve problems with a calculator: <call>12 + 30</call>"},
    {"role": "user", "content": "Lea has 412 cards. Lea buys 139 more. How many cards are there?"},
    {"role": "assistant", "content": "<call>412 + 139</call>"},
    {"role": "tool", "content": "551"},
    {"role": "assistant", "content": "There are 551 cards."},
    {"role": "user", "content": "Tom has 530 pens. Tom gives 214 away. How many pens are there?"},
    {"role": "assistant", "content": "<call>530 - 214</call>"},
    {"role": "tool", "content": "316"},
    {"role": "assistant", "content": "There are 316 pens."},
]
"""Before every question: what a call looks like, once for a sum and once for a difference."""


class WordSums:
    """Rows with a question, as messages, and its answer: "Ada has 347 coins. Ada gives 158 away."

    size: how many.
    """

    def __init__(self, size: int = 4000) -> None:
        draw = random.Random(0)
        self.rows = [_row(draw) for _ in range(size)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def _row(draw: random.Random) -> dict[str, Any]:
    who, what = draw.choice(PEOPLE), draw.choice(THINGS)
    total, number = draw.randint(300, 999), draw.randint(100, 299)
    less = draw.random() < 0.5
    change = f"gives {number} away" if less else f"buys {number} more"
    text = f"{who} has {total} {what}. {who} {change}. How many {what} are there?"
    answer = total - number if less else total + number
    return {"prompt": [*SHOWN, {"role": "user", "content": text}], "answer": str(answer)}
