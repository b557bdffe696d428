"""Law: a sentence that holds for every part of a kind, and where to look when it does not."""

import sysconfig
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.errors import first_line

Test = Callable[[Any], str | None]
LIBRARIES = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
CORE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Law:
    """name: the sentence. look: what to look at. test: what is wrong with a case, None if nothing
    is."""

    name: str
    look: str
    test: Test


def law(name: str, *, look: str) -> Callable[[Test], Law]:
    """Make a law of a function that says what is wrong."""
    return lambda test: Law(name, look, test)


def hold(who: str, laws: Sequence[Law], case: Any) -> None:
    """Try one law after the other. Raises AssertionError at the first that is broken.

    A part that raises while a law is tried breaks this law, too.
    """
    for each in laws:
        try:
            wrong = each.test(case)
        except Exception as error:  # whatever a stranger's part does
            reason = f"{_place(error)} raised {type(error).__name__}: {first_line(error)}"
            raise AssertionError(_message(who, each, reason)) from error
        if wrong is not None:
            raise AssertionError(_message(who, each, wrong))


def _message(who: str, broken: Law, wrong: str) -> str:
    return f'{who} breaks the law "{broken.name}": {wrong}\n  look at: {broken.look}'


def _place(error: BaseException) -> str:
    """The innermost line of an author's own that led to an error; "it" where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*LIBRARIES, CORE)):
            return f"`{frame.name}`, line {frame.lineno} of {Path(frame.filename).name},"
    return "it"
