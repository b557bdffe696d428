"""Places: lines of an environment's code, for messages about its episodes."""

import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from groupwise.environment import Environment


class Places:
    """Lines of the file that has the environment's `play`: the innermost, as " (line 12 of
    calculator.py)", or "" where there is none."""

    def __init__(self, environment: Environment) -> None:
        code = getattr(inspect.unwrap(type(environment).play), "__code__", None)
        self._file = code.co_filename if isinstance(code, CodeType) else ""

    def raised(self, error: BaseException) -> str:
        """Where an exception came from."""
        frames = traceback.extract_tb(error.__traceback__)
        return self._last((own.filename, own.lineno) for own in frames)

    def waits(self, coroutine: Any) -> str:
        """Where a suspended coroutine waits."""
        return self._last(_awaited(coroutine))

    def runs(self, thread: int | None) -> str:
        """Where a thread is now."""
        frame = sys._current_frames().get(thread or 0)
        return self._last(reversed([*_outwards(frame)]))

    def _last(self, lines: Iterable[tuple[str, int | None]]) -> str:
        numbers = [line for file, line in lines if file == self._file]
        return f" (line {numbers[-1]} of {Path(self._file).name})" if numbers else ""


def _awaited(coroutine: Any) -> Iterator[tuple[str, int | None]]:
    """The file and line of a coroutine, and of those that it awaits one in the other."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            yield frame.f_code.co_filename, frame.f_lineno
        coroutine = getattr(coroutine, "cr_await", None)


def _outwards(frame: FrameType | None) -> Iterator[tuple[str, int | None]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
