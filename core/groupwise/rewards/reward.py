"""Reward: a named, weighted reward function with its limits."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from groupwise.kit.constraint import Constraint
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.schedule import Schedule
from groupwise.prompt_source import Row
from groupwise.rewards.errors import MissingColumnError
from groupwise.rewards.members import Members, target_of

StepRewards = Sequence[float | None]
RewardFunction = Callable[..., "Sequence[float | StepRewards | None] | Awaitable[Any]"]
OWN_ARGUMENTS = (
    *("prompts", "completions", "groups", "purpose", "truncated", "ended"),
    *("trainer_state", "log_extra", "log_metric"),
)
REFERENCES = "references"
"""The argument of relative rewards: for each completion, those to compare it with."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A named, weighted reward function with its limits.

    weight: a number, or a schedule over the steps; unused with a constraint, whose multiplier is
        the weight.
    deadline: seconds that a call on a whole batch may take; of processor time if it is isolated.
    on_error: "stop" the run, or "skip": learn nothing from the failed samples, and count them.
    isolate: call it in a worker process, which can be killed.
    bound: names of options bound to the function; no column may have one of these names.
    sources: labels of the sources in a mixture whose rows it judges, None for all rows;
        label_column: the column of rows with this label.
    remake: builds the function again in a worker process, instead of pickling it.
    members: its methods and attributes.

    Raises UserError if a member is misspelt or of a wrong type, or if a relative reward takes no
    references.
    """

    name: str
    function: RewardFunction
    weight: float | Schedule = 1.0
    constraint: Constraint | None = None
    deadline: float = 120.0
    on_error: Literal["stop", "skip"] = "stop"
    isolate: bool = False
    bound: frozenset[str] = frozenset()
    sources: frozenset[str] | None = None
    label_column: str = "source"
    remake: "Callable[[], RewardFunction] | None" = None
    members: Members = field(init=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "members", Members.of(self.function))
        except ValueError as error:
            raise UserError(f"reward {self.name!r}: {error}") from error
        if self.members.relative and not self.takes(REFERENCES):
            raise UserError(
                f"reward {self.name!r} is `relative`, so it needs `{REFERENCES}` in its signature: "
                f"in evaluations a prompt may have one completion, which it compares with these"
            )

    @cached_property
    def is_async(self) -> bool:
        return is_async(self.function)

    @property
    def title(self) -> str:
        """The name of the function, or of the object's class, for messages to its author."""
        target = target_of(self.function)
        return str(getattr(target, "__name__", type(target).__name__))

    @cached_property
    def parameters(self) -> tuple[frozenset[str], frozenset[str], bool]:
        """Names of its parameters, of those without default, and whether it has `**columns`."""
        parameters = inspect.signature(self.function).parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        required = frozenset(p.name for p in named if p.default is p.empty)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return frozenset(p.name for p in named), required, takes_all

    def takes(self, name: str) -> bool:
        """Whether it receives the argument of this name."""
        named, _, takes_all = self.parameters
        return takes_all or name in named

    def judges(self, row: Row) -> bool:
        """Whether it is called for completions of this row, by the row's source."""
        return self.sources is None or row.get(self.label_column) in self.sources

    def check_columns(self, columns: Mapping[str, Any], facts: Sequence[str] = ()) -> None:
        """Raise UserError if a column has the name of an argument, or a required one is missing."""
        own = (*OWN_ARGUMENTS, REFERENCES) if self.members.relative else OWN_ARGUMENTS
        reserved = {*own, *facts, *self.bound}
        for column in columns:
            if column in reserved:
                raise UserError(
                    f"reward {self.name!r}: the dataset's column {column!r} collides with the "
                    f"argument of that name; rename the column"
                )
        known = {*reserved, *columns}
        for option, choices in self.members.columns.items():
            if known.isdisjoint(choices):
                raise MissingColumnError(self._missing(choices, columns), option=option)
        missing = self.parameters[1] - known
        if missing:
            raise MissingColumnError(self._missing((min(missing),), columns))

    def _missing(self, choices: Sequence[str], columns: Mapping[str, Any]) -> str:
        needed = f"one of the columns {', '.join(map(repr, choices))}"
        if len(choices) == 1:
            (column,) = choices
            plural = [name for name in OWN_ARGUMENTS if name == f"{column}s"]  # as of `completion`
            needed = f"the column {column!r}{did_you_mean(column, plural or columns)}"
        return (
            f"reward {self.name!r} needs {needed}; the dataset has "
            f"{', '.join(sorted(columns)) or 'none'}, and neither policy nor environment adds it"
        )


def is_async(function: RewardFunction) -> bool:
    target = target_of(function)
    call = getattr(target, "__call__", None)  # noqa: B004 - to inspect the method
    return any(map(inspect.iscoroutinefunction, (target, call)))
