"""Port: what a file of another framework becomes, with the reason of every change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from groupwise_commands.porting.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Something of theirs that has no counterpart, or could not be read, and why."""

    what: str
    why: str


class UnreadError(Exception):
    """A value that only a run of their file would show; name: their option, or a key of ours that
    follows from one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(kw_only=True)
class Port:
    """Reads `settings`, and collects keys of ours.

    defaults: theirs, of all options of a table. processes: how many train.
    written: values by dotted key; reasons: why a value is another than theirs, by the same key.
    rewards: sections of `rewards`, in order. losses: what has no counterpart. todo: what the user
    has to do by hand.
    """

    settings: Settings
    defaults: Mapping[str, Any]
    processes: int
    written: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rewards: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """Their value, or their default. Raises UnreadError if it could not be read."""
        if name in self.settings.unread:
            raise UnreadError(name)
        return self.settings.stated.get(name, self.defaults[name])

    def ours(self, key: str) -> Any:
        """What was written for a key of ours. Raises UnreadError if nothing was."""
        if key not in self.written:
            raise UnreadError(key)
        return self.written[key]

    def states(self, *names: str) -> bool:
        """Whether their file sets any of these."""
        return any(name in self.settings.stated or name in self.settings.unread for name in names)

    def write(self, key: str, value: Any, why: str = "") -> None:
        """Set a key of ours; why: the reason, if the value is not what theirs was."""
        self.written[key] = value
        if why:
            self.reasons[key] = why
        else:
            self.reasons.pop(key, None)

    def lose(self, what: str, why: str) -> None:
        self.losses.append(Loss(what=what, why=why))

    def lose_value(self, name: str, why: str) -> None:
        """Their option `name`, with its value, has no counterpart."""
        unset = "" if self.states(name) else ", their default"
        self.lose(f"{name}: {shown(self.get(name))}{unset}", why)


def shown(value: Any) -> str:
    """A value in at most 60 characters, as YAML writes it."""
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
