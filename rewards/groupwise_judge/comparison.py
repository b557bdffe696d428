"""Comparison: how a judge is asked which of two completions is better, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise_judge.form import Form
from groupwise_judge.messages import Exhibit, exhibits, messages
from groupwise_judge.server import Question

WINNER = "winner"
FIRST, SECOND, TIE = "A", "B", "tie"
POINTS: Mapping[Any, float] = {FIRST: 1.0, TIE: 0.5, SECOND: 0.0}
"""What an answer is worth for the completion that was read first."""
INSTRUCTIONS = """\
You are a strict and fair judge. A model gave two completions, A and B. Decide which one is better\
{criterion}. Neither their order nor their length says anything by itself."""
LETTER = "Which completion is better? Answer with its letter alone: A or B."
TIES = ' Answer "tie" only if neither is better.'


class Comparison(ABC):
    """Makes a question of two completions; the answer's field `winner` is A, B or "tie"."""

    @abstractmethod
    def question(self, context: Sequence[Exhibit], first: Any, second: Any) -> Question:
        """Which is better; A is the first. Raises ValueError for what cannot be compared.

        context: what the judge reads before them, such as the prompt.
        """


class Fenced(Comparison):
    """Any two completions, in fences; the answer is JSON or, by `letter`, one letter."""

    def __init__(self, criterion: str | None, *, reasoning: bool = False, letter: bool = False):
        by = "" if criterion is None else f" by this criterion: {criterion.strip()}".rstrip(".")
        instructions = INSTRUCTIONS.format(criterion=by)
        self._instructions = instructions if letter else f"{instructions}{TIES}"
        self._form = Form({WINNER: (FIRST, SECOND, TIE)}, reasoning)
        self._request = LETTER if letter else self._form.request()

    def question(self, context: Sequence[Exhibit], first: Any, second: Any) -> Question:
        shown = [*exhibits("completion A", first), *exhibits("completion B", second)]
        chat = messages(self._instructions, [*context, *shown], self._request)
        return Question(chat, self._form)
