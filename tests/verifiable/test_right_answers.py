"""Right answers in the notation of models, for gold answers of GSM8K, MATH and NuminaMath."""

from __future__ import annotations

import json
from pathlib import Path

from groupwise_verifiable.mathematics.reward import MathEquivalence

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("right_answers.jsonl").read_text().splitlines()
]
# The strict rules do not read, or do not accept, answers that contain one of these.
REFUSED = (
    r"12x^3 - 9x^2",  # for a product
    r"\frac{n(n+1)}{2}",  # for a sum
    r"\frac{n(n-1)}{2}",  # for a binomial coefficient
    r"1 - \frac{1}{n+1}",  # for a quotient
    "2x+3y=5",  # for an equation that is solved for y
    r"7 \pmod{12}",  # for 7
    r"7 \mod 12",
    r"16 - 3 - 4 = 9 \times 2 = 18",
    r"\[ x = 42 \]",  # neither in a box nor called the answer
)


def test_right_answers_get_1() -> None:
    """The strict rules refuse no right answers but the known ones."""
    texts, prompts = [row["text"] for row in ROWS], [row["prompt"] for row in ROWS]
    values = MathEquivalence()(prompts, texts, answer=[row["gold"] for row in ROWS])
    refused = [
        (row["text"], row["gold"])
        for row, value in zip(ROWS, values, strict=True)
        if value != 1.0 and not any(part in row["text"] for part in REFUSED)
    ]
    assert len(ROWS) > 400
    assert refused == []
