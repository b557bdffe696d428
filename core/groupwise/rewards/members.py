"""Members: what a reward may have besides being callable."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from groupwise.prompt_source import Row

if TYPE_CHECKING:
    from groupwise.rewards.scores import Scores
    from groupwise.rollouts import Rollouts

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "estimate": (),
    "estimate_cpu": (),
    "load": (),
    "close": (),
    "gold_completion": ("row",),
    "check_row": ("row",),
    "refresh": ("rollouts", "scores"),
    "state_dict": (),
    "load_state_dict": ("state",),
}
"""By name of a method, what a run passes to it, by position."""
OF_REFRESH = ("labels", "every")
OF_STATE = ("state_dict", "load_state_dict")


@dataclass(frozen=True, kw_only=True)
class Members:
    """The methods and attributes of a reward that a run uses. All of them are optional.

    They are read once, when the run builds the reward. Methods are called in the main thread (of an
    isolated reward: of its process), and never while a call of the reward runs.

    judges: True if 1 means right: the reward may then be the run's accuracy. False: it measures,
        as a format, a length or a preference does. None: it does not say, and counts as False.
    required_columns: the columns that it reads without naming them in its signature, by the option
        that names each, "" for those that none names: {"gold": "answer"}. Of several it needs one:
        {"": ("tests", "solution")}.
    gold_completion: called before a run with rows of the dataset; returns a completion, as text,
        that gets the highest value, or None where the row has none and the reward does not apply.
        Raises ValueError for a row that it cannot use. The reward is called with what it returns,
        without facts of a policy, so only a reward that is cheap to call should have it.
    check_row: called before a run with rows of the dataset; raises ValueError for a row to which
        the reward cannot apply, whatever the completion.
    relative: whether it compares the completions of a group. Its signature then has `references`.
    estimate: called by `groupwise check`, without `load`; returns bytes on the device by purpose,
        where rewards that share a model name the same purpose.
    estimate_cpu: the same of CPU memory; without a GPU, too, what is on the GPU else.
    load: called once before the run, to load weights.
    close: called once at the end of the run; may be async. An isolated reward's is not called: its
        process is killed.
    refresh: called after a step with its rollouts and scores, on each process with its own, to
        train the reward itself; returns metrics by name, or None.
    labels: beside `refresh`, the label of the watched reward whose scores it receives; None: it
        receives those of the step.
    every: beside `refresh`, it is called once in so many steps; 0: never.
    state_dict, load_state_dict: its state (numbers, strings, tensors, lists and mappings), saved in
        every checkpoint. An `nn.Module` without `refresh` is frozen, so it has none.
    """

    judges: bool | None = None
    required_columns: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    gold_completion: Callable[[Row], str | None] | None = None
    check_row: Callable[[Row], None] | None = None
    relative: bool = False
    estimate: Callable[[], Mapping[str, int]] | None = None
    estimate_cpu: Callable[[], Mapping[str, int]] | None = None
    load: Callable[[], Any] | None = None
    close: Callable[[], Any] | None = None
    refresh: "Callable[[Rollouts, Scores], Mapping[str, Any] | None] | None" = None
    labels: str | None = None
    every: int = 1
    state_dict: Callable[[], Any] | None = None
    load_state_dict: Callable[[Any], Any] | None = None

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Of `required_columns`, by option, those of which the reward needs one."""
        named = self.required_columns.items()
        return {key: (own,) if isinstance(own, str) else tuple(own) for key, own in named}

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Members":
        """The members of a function or an object.

        Raises ValueError, which names the member, for one that is misspelt or of a wrong type.
        """
        from torch import nn  # here, since reading a configuration needs no torch

        target = target_of(function)
        names = {each.name for each in fields(cls)}
        if getattr(target, "refresh", None) is None:
            names -= {*OF_REFRESH, *(OF_STATE if isinstance(target, nn.Module) else ())}
        values = {name: getattr(target, name, None) for name in sorted(names)}
        members = {name: value for name, value in values.items() if value is not None}
        for name, value in members.items():
            if problem := _problem(name, value):
                raise ValueError(f"its member `{name}` {problem}")
        for one, other in (OF_STATE, OF_STATE[::-1]):
            if one in members and other not in members:
                raise ValueError(f"it has `{one}` without `{other}`: it needs both, or neither")
        _check_spelling(target, names)
        return cls(**members)


def target_of(function: Callable[..., Any]) -> Any:
    """The function or object itself, without bound options."""
    return function.func if isinstance(function, partial) else function


def _problem(name: str, value: Any) -> str | None:
    """What is wrong with the value of a member, or None."""
    if name in ARGUMENTS:
        call = f"{name}({', '.join(ARGUMENTS[name])})"
        if not _takes(value, ARGUMENTS[name]):
            return f"is {_brief(value)}; expected a method, called as `{call}`"
        is_wrong = inspect.iscoroutinefunction(value) and name != "close"
        return "is async; expected a plain method" if is_wrong else None
    fits, expected = VALUES[name]
    return None if fits(value) else f"is {_brief(value)}; expected {expected}"


def _are_columns(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(map(_is_text, value)):
        return False
    named = [(own,) if isinstance(own, str) else own for own in value.values()]
    return all(isinstance(own, list | tuple) and own and all(map(_is_text, own)) for own in named)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "judges": (_is_flag, "True or False"),
    "relative": (_is_flag, "True or False"),
    "required_columns": (
        _are_columns,
        "names of columns by the option that names each; of a tuple it needs one",
    ),
    "labels": (_is_text, "the label of a watched reward"),
    "every": (_is_count, "a number of steps, or 0 for never"),
}
"""By name of any other member, whether a value fits, and what is expected."""


def _takes(value: Any, arguments: tuple[str, ...]) -> bool:
    """Whether a value can be called with so many arguments, as far as its signature tells."""
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a built-in function without a signature
        pass
    return True


def _brief(value: Any) -> str:
    if not inspect.isroutine(value):
        return f"{value!r:.60}"
    return f"`{value.__name__}{inspect.signature(value)}`"


def _check_spelling(target: Any, known: set[str]) -> None:
    """Raise ValueError for an attribute that is one letter off a member, and fits as that member.

    So `judge = True` is refused, and `self.judge = Client()` is not. Properties are not read.
    """
    for name in dir(target):
        if name.startswith("_") or name in known:
            continue
        meant = next((member for member in sorted(known) if _is_close(name, member)), None)
        if meant is None or isinstance(inspect.getattr_static(target, name, None), property):
            continue
        value = getattr(target, name, None)
        if value is not None and _problem(meant, value) is None:
            raise ValueError(
                f"its attribute `{name}` is no member of rewards, did you mean `{meant}`? If it is "
                f"your own, call it `_{name}`"
            )


def _is_close(name: str, other: str) -> bool:
    """Whether a letter more, less or changed, or two neighbours swapped, make one the other."""
    while name and other and name[0] == other[0]:
        name, other = name[1:], other[1:]
    while name and other and name[-1] == other[-1]:
        name, other = name[:-1], other[:-1]
    is_swap = len(name) == len(other) == 2 and name == other[::-1]
    return is_swap or max(len(name), len(other)) == 1
