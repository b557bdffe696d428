"""Exits: code that a run calls must not end its process as if the run were finished."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from groupwise.kit.errors import UserError

ADVICE = (
    "before all was done; checkpoints are intact. If a reward must do this, set `isolate: true` on "
    "it, so that only a process of its own ends"
)


@contextmanager
def reported() -> Iterator[None]:
    """A context in which `sys.exit` raises UserError, and `os._exit` says where it was called, and
    exits with 1 instead of 0."""
    own, leave = os.getpid(), os._exit

    def ended(status: int) -> None:
        if os.getpid() != own:  # forked processes end so
            leave(status)
        try:
            where = _place(traceback.extract_stack(sys._getframe(1))[-1])
            message = f"error: os._exit({status}), called in {where}, ended the process {ADVICE}"
            print(message, file=sys.__stderr__, flush=True)
        finally:  # even where stderr is closed
            leave(status or 1)

    os._exit = ended  # type: ignore[assignment]
    try:
        yield
    except SystemExit as error:
        where = _place(traceback.extract_tb(error.__traceback__)[-1])
        raise UserError(f"sys.exit({error.code}), called in {where}, came {ADVICE}") from error
    finally:
        if os._exit is ended:  # and not that of a run that began later
            os._exit = leave


def _place(frame: traceback.FrameSummary) -> str:
    return f'"{frame.filename}", line {frame.lineno}, in {frame.name},'
