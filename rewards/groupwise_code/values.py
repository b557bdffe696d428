"""Values: what a column of tests holds, as JSON or as its text."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from groupwise.kit.foreign_json import read as read_json
from groupwise_code.problem import Calling, Case, FormatError, Printing


def column(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, read as JSON where it is text. Raises FormatError."""
    value = row[name]
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError as error:
        raise FormatError(f"the column {name!r} is not JSON: {error}") from error


def case(name: str | None, given: Any, expected: Any) -> Case:
    """A call of the function with that name, or, without one, what a program reads and prints."""
    if name:
        return call(name, value(given), value(expected))
    return Printing("" if given is None else text(given), text(expected))


def call(name: str, arguments: Any, expected: Any) -> Calling:
    """A call of a function. Raises FormatError."""
    if not isinstance(name, str):
        raise FormatError(f"expected the name of a function, found {name!r:.60}")
    if not isinstance(arguments, list):
        raise FormatError(f"arguments of {name!r}: expected a list, found {arguments!r:.60}")
    return Calling(name, arguments, expected)


def value(data: Any) -> Any:
    """A value that may stand as JSON; in LeetCode's form, one argument a line."""
    if not isinstance(data, str):
        return data
    with suppress(ValueError):
        return read_json(data)
    try:
        return [read_json(line) for line in data.splitlines()]
    except ValueError as error:
        raise FormatError(f"not a value in JSON: {data!r:.60}") from error


def text(data: Any) -> str:
    """APPS has some inputs as lists of lines. Raises FormatError where there is nothing."""
    if data is None:
        raise FormatError("a test has no output")
    return "\n".join(map(str, data)) if isinstance(data, list) else str(data)
