"""What is judged: a completion, the row that it answers, and the rules."""

from dataclasses import dataclass
from typing import Literal

Rules = Literal["strict", "any_form", "trl", "open_r1"]


@dataclass(frozen=True)
class Attempt:
    """A completion's text, the gold answer and the prompt of its row, and what is right."""

    gold: str
    text: str
    prompt: str = ""
    rules: Rules = "strict"
