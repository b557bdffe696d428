"""Stored: complete groups and their scores in what a checkpoint can hold: JSON and tensors."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from groupwise.environment import Reply
from groupwise.prompt_source import Row
from groupwise.record import Call, Comparison, Episode, Group, Rollout
from groupwise.record.gather import gather, moved
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts, Turn
from groupwise.storage import state
from groupwise.tool_call import ToolCall

CLASSES = {
    each.__name__: each
    for each in (Group, Episode, Call, Comparison, Rollout, Rollouts, Turn, Reply, ToolCall, Scores)
}
"""Of which objects groups and scores consist."""
CONTAINERS: Mapping[str, Callable[[Any], Any]] = {
    "mapping": dict,
    "list": list,
    "tuple": tuple,
    "set": frozenset,
}


def encode(groups: Sequence[Group], scores: Scores | None, labels: Sequence[str]) -> dict[str, Any]:
    """Groups without their rows, which their draws tell, and their scores; labels: of the players.
    Raises ValueError if they hold what cannot be stored, as a picture."""
    places = dict[int, tuple[Rollouts, int]]()
    for rollouts in ([*group.rollouts(label)] for group in groups for label in labels):
        if any(rollout.batch is None for rollout in rollouts):
            raise ValueError("they were released")
        if rollouts:  # its completions alone, since others may share what was drawn
            batch = moved(gather(rollouts), torch.device("cpu"))
            batch = replace(batch, prompts=[{}] * len(rollouts))
            places |= {id(rollout): (batch, at) for at, rollout in enumerate(rollouts)}
    rows = {id(group.row): group.number for group in groups}
    plain, tensors = state.encode(_Encoder(rows, places).of([[*groups], scores]), "groups")
    return {"groups": json.dumps(plain), "tensors": tensors}


def decode(
    stored: Mapping[str, Any], drawn: Mapping[int, Group], device: torch.device
) -> tuple[list[Group], Scores | None]:
    """What `encode` made of groups and scores; drawn: the same draws, by their numbers; device: of
    the policy."""
    plain = state.decode(json.loads(stored["groups"]), stored["tensors"])
    groups, scores = _Decoder({number: group.row for number, group in drawn.items()}).of(plain)
    calls = [call for group in groups for episode in group.episodes for call in episode.calls]
    rollouts = {id(call.rollout): call.rollout for call in calls}.values()
    batches = {
        id(rollout.batch): rollout.batch for rollout in rollouts if rollout.batch is not None
    }
    on_device = {number: moved(batch, device) for number, batch in batches.items()}
    for rollout in rollouts:
        rollout.batch = on_device.get(id(rollout.batch))
    return groups, scores


class _Encoder:
    """A value of its own is itself; all else is a list whose first entry says what it is.

    rows: by the `id` of a row, the number of its draw; places: by that of a rollout,
    the batch and the row in which it is stored.
    """

    def __init__(self, rows: Mapping[int, int], places: Mapping[int, tuple[Rollouts, int]]) -> None:
        self.rows, self.places, self.numbers = rows, places, dict[int, int]()

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, str | int | float):
            return value
        if id(value) in self.rows:
            return ["row", self.rows[id(value)]]
        if isinstance(value, Tensor):
            return value.detach().cpu()
        if CLASSES.get(type(value).__name__) is type(value):
            return self._object(value)
        if isinstance(value, Mapping):
            return ["mapping", [self.of(pair) for pair in value.items()]]
        if isinstance(value, list | tuple | set | frozenset):
            name = type(value).__name__.removeprefix("frozen")
            if name not in CONTAINERS:  # a class of somebody's own
                name = "list"
            return [name, [*map(self.of, sorted(value) if name == "set" else value)]]
        raise ValueError(f"{type(value).__name__} cannot be stored")

    def _object(self, value: Any) -> Any:
        name = type(value).__name__
        if not is_dataclass(value):
            return [name, [self.of(each) for each in value]]
        if id(value) in self.numbers:
            return ["known", self.numbers[id(value)]]
        self.numbers[id(value)] = len(self.numbers)
        own = {field.name: getattr(value, field.name) for field in fields(value)}
        if id(value) in self.places:
            own["batch"], own["at"] = self.places[id(value)]
        plain = {field.name: _default(field) for field in fields(value)}
        changed = {n: x for n, x in own.items() if type(x) is not type(plain[n]) or x != plain[n]}
        return [name, {n: self.of(x) for n, x in changed.items()}]


class _Decoder:
    def __init__(self, rows: Mapping[int, Row]) -> None:
        self.rows, self.known = rows, list[Any]()

    def of(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, content = value
        if kind in ("row", "known"):
            return (self.rows if kind == "row" else self.known)[content]
        if kind in CONTAINERS:
            return CONTAINERS[kind](map(self.of, content))
        made = CLASSES[kind]
        if not is_dataclass(made):
            return made(*map(self.of, content))
        self.known.append(instance := made.__new__(made))
        for field in fields(made):  # the class may be frozen
            stored = field.name in content
            filled = self.of(content[field.name]) if stored else _default(field)
            object.__setattr__(instance, field.name, filled)
        return instance


def _default(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
