"""Outcome: the value of a check, or why it has none."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WorkerFailure:
    """Why an item has no value: `kind` for code, `reason` for messages."""

    kind: Literal["hung", "crashed", "memory", "raised"]
    reason: str


Outcome = float | WorkerFailure | None
"""None: the reward does not apply."""
