"""Problem: what a program is tried on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


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
    """Tests that are code: they end without an exception."""

    code: str
    names: Sequence[str]
    """What the tests use and do not define: the program's functions."""


Case: TypeAlias = Printing | Calling | Testing


class FormatError(ValueError):
    """A row's tests cannot be read."""
