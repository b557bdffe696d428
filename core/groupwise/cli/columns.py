"""Columns: which of a data file's hold prompts and answers, and what the answers are."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groupwise.errors import UserError
from groupwise.plugins.registry import installed

PROMPTS = ("prompt", "question", "problem", "instruction", "input", "query", "caption")
ANSWERS = ("answer", "solution", "target", "label", "gold", "output", "response")
"""Names in which data sets usually have them, the likeliest first."""
LOOKED_AT = 100
"""Rows of which the answers are looked at."""
NUMBER = re.compile(r"(?:.*####)?\s*[-+]?\$?[\d,]*\.?\d+\s*", re.DOTALL)
FORMULA = re.compile(r"[\\^$=]|\d\s*/\s*\d")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a data set.

    names: all of them, empty where they cannot be seen; answers: the first that the file has.
    """

    prompt: str
    answer: str
    names: Sequence[str] = ()
    answers: Sequence[str] = field(default=(), repr=False)

    @property
    def task(self) -> str:
        """What kind of answers these are: `numbers`, `math` for formulas among them, or `words`."""
        if all(map(NUMBER.fullmatch, self.answers)):
            return "numbers"
        numbers = sum(bool(NUMBER.fullmatch(a) or FORMULA.search(a)) for a in self.answers)
        return "math" if numbers == len(self.answers) else "words"


def columns(path: Path, prompt: str | None, answer: str | None) -> Columns:
    """The columns of a file; prompt, answer: their names where a user gave them.

    Raises UserError for a file that cannot be read, and where no column has such a name.
    """
    dataset = installed().load("prompts", "dataset")
    # With a template no column need be called `prompt`.
    data = dataset(dataset.Config(path=str(path), template="")).data
    names = data.column_names
    chosen = _chosen(path, "--prompt", prompt, PROMPTS, names)
    gold = _chosen(path, "--answer", answer, ANSWERS, names, needed=answer is not None)
    answers = [str(value) for value in data[:LOOKED_AT][gold]] if gold else []
    return Columns(prompt=chosen, answer=gold, names=names, answers=answers)


def _chosen(
    path: Path,
    option: str,
    name: str | None,
    usual: Sequence[str],
    names: Sequence[str],
    *,
    needed: bool = True,
) -> str:
    wanted = usual if name is None else (name,)
    lower = {each.lower(): each for each in reversed(names)}
    for each in wanted:
        if each.lower() in lower:
            return lower[each.lower()]
    if not needed:
        return ""
    raise UserError(
        f"{path} has no column {' or '.join(map(repr, wanted))} (it has {', '.join(names)}); "
        f"name it by {option} COLUMN"
    )
