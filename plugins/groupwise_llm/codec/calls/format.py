"""Format: the form in which a model writes calls of tools into its turn."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from groupwise.tool_call import ToolCall
from groupwise_messages.thinking import OPENING, TAGS

Tools = Sequence[Mapping[str, Any]]
SPACES = re.compile(r"\s*")
DECODER = json.JSONDecoder(strict=False)
"""Models write the lines of a program into a JSON string as they are."""


@dataclass(frozen=True)
class Parsed:
    """calls: of a turn, in order. content: its text with the well-formed ones removed, None if
    there is nothing to remove."""

    calls: tuple[ToolCall, ...] = ()
    content: str | None = None


@dataclass(frozen=True)
class Written:
    """The calls at one place of a text, empty if what stands there is none, and where reading
    continues."""

    end: int
    calls: tuple[ToolCall, ...] = ()


class Format(ABC):
    """Reads calls in the order in which they were written.

    reads_end: whether the text that it reads has the token that ends the turn.
    """

    reads_end: ClassVar[bool] = False

    @abstractmethod
    def parse(self, text: str, tools: Tools, before: str) -> Parsed:
        """The calls in a text; it raises nothing, whatever the text.

        text: of a turn, with special tokens; tools: JSON schemas of those that were shown; before:
        what the assistant's turn began with, by the template or in an earlier part of it.
        """


class Scanned(Format):
    """A format whose calls begin with a mark, outside of the thinking.

    opening: matches where a call may begin.
    """

    opening: re.Pattern[str]

    @abstractmethod
    def read(self, text: str, opened: re.Match[str], tools: Tools) -> Written:
        """The calls at a match of `opening`."""

    def parse(self, text: str, tools: Tools, before: str) -> Parsed:
        calls, kept = list[ToolCall](), list[str]()
        start = place = 0  # of the text that is kept; of what is not read yet
        closing, thought = _closing(before), OPENING.search(text)
        while True:
            if closing is not None:
                at = text.find(closing, place)
                if at < 0:
                    break
                place, closing = at + len(closing), None
            opened = self.opening.search(text, place)
            if opened is None:
                break
            if thought is not None and thought.start() < place:
                thought = OPENING.search(text, place)
            if thought is not None and thought.start() < opened.start():
                place, closing = thought.end(), TAGS[thought[0]]
                continue
            written = self.read(text, opened, tools)
            place = max(written.end, opened.end(), opened.start() + 1)
            calls += written.calls
            if any(call.fault is None for call in written.calls):
                kept.append(text[start : opened.start()])
                start = place
        content = self.joined([*kept, text[start:]]) if kept else None
        return Parsed(tuple(calls), content)

    def joined(self, parts: Sequence[str]) -> str:
        """The text beside the calls, from its parts."""
        first, *others = parts
        beside = (part.strip() for part in others)
        return "\n".join([part for part in (first.rstrip(), *beside) if part])


def _closing(before: str) -> str | None:
    """What closes the thinking that is open at the end of a text."""
    begun = [(before.rfind(tag), close) for tag, close in TAGS.items() if tag in before]
    if not begun:
        return None
    place, close = max(begun)
    return close if close not in before[place:] else None


def json_at(text: str, place: int) -> tuple[Any, int]:
    """The JSON value at a place of a text, after spaces, and where it ends.

    Raises ValueError, also for one that is nested too deeply.
    """
    spaces = SPACES.match(text, place)
    try:
        value, end = DECODER.raw_decode(text, place if spaces is None else spaces.end())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value, end


def malformed(error: Exception, form: str) -> ToolCall:
    """A call whose JSON cannot be read; form: what to write."""
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return ToolCall("", fault=f"the call is not valid JSON ({reason}); write {form}")
