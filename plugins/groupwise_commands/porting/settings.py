"""Settings: what a file of another framework states."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.kit.errors import UserError

LARGEST = 4_000_000
"""Bytes of a file that is read."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A value that is no constant: its source, and its line (None if unknown)."""

    source: str
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The values that a file states, by dotted name; and those that it computes.

    processes: how many the file says that there are, None if it does not. remarks: what the user
    has to do by hand.
    """

    source: str
    stated: Mapping[str, Any]
    unread: Mapping[str, Unread] = field(default_factory=dict)
    processes: int | None = None
    remarks: tuple[str, ...] = ()


def text_of(path: Path, expected: str) -> str:
    """The text of a file. Raises UserError if it cannot be read; expected: what it should be."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected {expected}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected {expected}") from None
    if len(content) > LARGEST:
        raise UserError(f"{path}: {len(content):,} bytes are too many; expected {expected}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file; expected {expected}") from None
