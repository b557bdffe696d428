"""Errors for users: a mistake that they can correct, as one message without a traceback."""

import difflib
import sysconfig
import traceback
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points

from groupwise.kit import secrets, terminal

PYTHON = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib")))
INSTALLED = tuple(map(sysconfig.get_path, ("purelib", "platlib")))
"""Folders of the standard library, and of installed packages."""


class UserError(ValueError):
    """What was expected, what was received, and what to set; the command line prints the message
    without a traceback. Secrets of this process are masked in it, and control characters escaped.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(terminal.printable(secrets.redacted(str(message))))


def message_of(error: object) -> str:
    """The text of an exception or of another reason, also of one whose `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return f"({type(error).__name__} without a readable message)"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has no message."""
    return (message_of(error).strip() or type(error).__name__).splitlines()[0]


def own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost line of a user's own code in an exception's traceback, else that of an
    installed package. None if all of it is Groupwise's or Python's."""
    ours = _packages()
    modules = [f.f_globals.get("__name__", "") for f, _ in traceback.walk_tb(error.__traceback__)]
    frames = [
        frame
        for module, frame in zip(modules, traceback.extract_tb(error.__traceback__), strict=True)
        if str(module).partition(".")[0] not in ours
    ]
    installed = [f for f in frames if f.filename.startswith(INSTALLED)]
    own = [f for f in frames if not f.filename.startswith((*INSTALLED, *PYTHON, "<frozen"))]
    return next(reversed(own or installed), None)


def place_of(error: BaseException) -> str | None:
    """The file, the line and the code of `own_frame`, as one line; None if there is none."""
    frame = own_frame(error)
    if frame is None:
        return None
    code = f": {frame.line}" if frame.line else ""
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}{code}"


@cache
def _packages() -> frozenset[str]:
    """The names of Groupwise's own packages."""
    points = entry_points(group="groupwise")
    ours = (point for point in points if point.dist is not None and point.dist.name == "groupwise")
    return frozenset({"groupwise", "groupwise_testing"}) | {p.module.split(".")[0] for p in ours}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """', did you mean "x"?' with the closest known name; "" if none is close."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    # "gpro" is as close to "gspo" as to "grpo", but swapped letters are the commoner mistake.
    close.sort(key=lambda other: sorted(other) != sorted(name))
    return f", did you mean {close[0]!r}?" if close else ""
