"""Outcome: the value of a check, or why it has none."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WorkerFailure:
    """Why an item has no value.

    kind: for code; reason: for messages, a phrase to follow the item's name; may_pass: whether the
    machine may be its cause, and not the item.
    """

    kind: Literal["hung", "crashed", "memory", "raised", "unstarted"]
    reason: str
    may_pass: bool = False


Outcome = float | WorkerFailure | None
"""None: the reward does not apply."""
