"""Together: what one of several processes does for all."""

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from groupwise.errors import UserError, first_line

Answer = TypeVar("Answer")


def by_first(action: Callable[[], Answer]) -> Answer:
    """What the action returns on the first process; the others wait for it, and get it sent.

    What it raises there is raised on all, elsewhere as a UserError.
    """
    state = PartialState()
    if state.num_processes == 1:
        return action()
    outcome: list[Any] = [None, None]
    raised: Exception | None = None
    if state.is_main_process:
        try:
            outcome[0] = action()
        except Exception as error:
            raised, outcome[1] = error, str(error) or first_line(error)
    broadcast_object_list(outcome)
    if raised is not None:
        raise raised
    if outcome[1] is not None:
        raise UserError(outcome[1])
    value: Answer = outcome[0]
    return value
