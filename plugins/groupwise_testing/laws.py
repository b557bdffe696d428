"""Law: a property of every part of a kind, its test, and what to look at if it does not hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.kit import errors

Test = Callable[[Any], str | None]


@dataclass(frozen=True)
class Law:
    """name: the property, as a sentence. hint: where to look if it does not hold. test: returns
    what is wrong with a case, None if nothing is."""

    name: str
    hint: str
    test: Test


def law(name: str, *, hint: str) -> Callable[[Test], Law]:
    """Decorator: make a law of a test function."""
    return lambda test: Law(name, hint, test)


def hold(who: str, laws: Sequence[Law], case: Any) -> None:
    """Test the laws in order. Raises AssertionError at the first that is broken.

    An exception during a test breaks that law, too.
    """
    for each in laws:
        try:
            wrong = each.test(case)
        except Exception as error:  # third-party code may raise anything
            reason = f"{_place(error)} raised {type(error).__name__}: {errors.first_line(error)}"
            raise AssertionError(_message(who, each, reason)) from error
        if wrong is not None:
            raise AssertionError(_message(who, each, wrong))


def _message(who: str, broken: Law, wrong: str) -> str:
    return f'{who} breaks the law "{broken.name}": {wrong}\n  look at: {broken.hint}'


def _place(error: BaseException) -> str:
    """The innermost line of the author's own code in a traceback; "it" if there is none."""
    frame = errors.own_frame(error)
    if frame is None:
        return "it"
    return f"`{frame.name}`, line {frame.lineno} of {Path(frame.filename).name},"
