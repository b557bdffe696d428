"""Attempt: the input of a check, sent to a worker: completion, gold answer, prompt and rules."""

from dataclasses import dataclass
from typing import Literal

Rules = Literal["strict", "any_form", "trl", "open_r1"]


@dataclass(frozen=True)
class Attempt:
    """A completion's text, its row's gold answer and prompt, and the rules for a right answer."""

    gold: str
    text: str
    prompt: str = ""
    rules: Rules = "strict"
