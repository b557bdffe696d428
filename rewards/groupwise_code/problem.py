"""Problem: what a program is tried on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from groupwise_sandbox.sandbox import Suite


@dataclass(frozen=True)
class Printing:
    """The program reads `stdin` and prints `expected`, or what a checker accepts."""

    stdin: str
    expected: str
    checker: str | None = None
    """A program that is called with the names of three files: the input, the expected output, and
    the output that it judges. It prints 1 or True for a right one."""


@dataclass(frozen=True)
class Calling:
    """A function of the program, called with these arguments, returns `expected`."""

    name: str
    """Of the function, or "Class.method"."""
    arguments: Sequence[Any]
    expected: Any


@dataclass(frozen=True)
class Testing:
    """Tests that are code: each ends without an exception."""

    suite: Suite
    """With what they use and do not define: the program's functions and classes."""
    modules: Sequence[str]
    """What they import."""


Case: TypeAlias = Printing | Calling | Testing
Language: TypeAlias = Literal["python", "c", "cpp", "javascript"]


@dataclass(frozen=True)
class Problem:
    """The tests of a row."""

    cases: Sequence[Case]
    languages: Sequence[str]
    """Those that its programs may be written in; a block that names none is of the first."""


def count(case: Case) -> int:
    """The tests of a case."""
    return max(1, len(case.suite.calls)) if isinstance(case, Testing) else 1


def passed(case: Case, reasons: Sequence[str | None]) -> Case | None:
    """The tests of a case that have no reason to fail."""
    if not isinstance(case, Testing) or not case.suite.calls:
        return None if any(reasons) else case
    pairs = zip(case.suite.calls, reasons, strict=True)
    calls = [call for call, reason in pairs if reason is None]
    return replace(case, suite=replace(case.suite, calls=calls)) if calls else None


class FormatError(ValueError):
    """A row's tests cannot be read."""
