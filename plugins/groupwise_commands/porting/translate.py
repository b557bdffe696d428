"""Translate: the options of a table applied to a file of another framework."""

from collections.abc import Mapping, Sequence

from groupwise.kit.errors import UserError, did_you_mean
from groupwise_commands.porting.option import Group, Option
from groupwise_commands.porting.port import Port, UnreadError, shown
from groupwise_commands.porting.settings import Settings

PLACEHOLDERS = {"policy.model": "MODEL", "prompts.name": "dataset", "prompts.path": "prompts.jsonl"}
"""By required key of ours, what stands there where theirs says nothing, or cannot be read."""
NAMES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a section",
}


def translate(groups: Sequence[Group], settings: Settings, processes: int | None) -> Port:
    """Apply the options of a table to the settings.

    What the table does not have is listed as lost. Raises UserError if it has less than half of the
    names, since the file is then of something else, and for a value of another type.
    """
    options = {name: each for group in groups for each in group.options for name in each.names}
    unknown = _unknown(options, settings)
    _check(options, settings)
    count = processes or settings.processes or 1
    defaults = {name: option.default for name, option in options.items()}
    port = Port(settings=settings, defaults=defaults, processes=count, todo=[*settings.remarks])
    left = _apply(groups, port)
    for name, hint in unknown.items():
        port.lose(name, f"not known here, perhaps of another version or your own{hint}")
    _leave(options, port, left, unknown)
    for key, value in PLACEHOLDERS.items():
        port.written.setdefault(key, value)
    if not port.rewards:
        port.rewards.append({"name": "my_rewards:reward"})
    return port


def _apply(groups: Sequence[Group], port: Port) -> Mapping[str, list[str]]:
    """Apply the options; returns by what could not be read the keys of ours that follow from it."""
    left: dict[str, list[str]] = {}
    for option in (each for group in groups for each in group.options):
        stated = [name for name in port.settings.stated if name in option.names]
        try:
            if option.put is not None and (option.always or stated):
                _put(port, option, stated)
            elif option.lost:
                _lose(port, option, stated)
        except UnreadError as error:
            left.setdefault(error.name, []).append(option.here)
    return left


def _leave(
    options: Mapping[str, Option],
    port: Port,
    left: Mapping[str, list[str]],
    unknown: Mapping[str, str],
) -> None:
    """What follows from values that could not be read is left to do."""
    unread = port.settings.unread
    for name, each in unread.items():
        if name in unknown:  # it is listed already
            continue
        where = "it is computed" if each.line is None else f"line {each.line} computes it"
        here = [options[name].here] if name in options else []
        keys = [key for key in dict.fromkeys((*here, *left.get(name, ()))) if _is_open(key, port)]
        fix = f"; set {', '.join(keys)}" if keys else ""
        port.todo.append(
            f"{name} = {shown(each.source)}: {where}, and files are read, not run{fix}"
        )
    for key in left.keys() - unread.keys():
        port.todo.append(f"{', '.join(left[key])}: follows from {key}, which is left to do")


def _is_open(here: str, port: Port) -> bool:
    """Whether an option's keys of ours are still to be set."""
    return here not in ("", "none") and here.strip("`") not in port.written


def _put(port: Port, option: Option, stated: Sequence[str]) -> None:
    """Raises UserError for values with which it cannot be computed, such as a batch of size 0."""
    assert option.put is not None
    try:
        option.put(port)
    except (UserError, UnreadError):
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        nothing = [n for n, v in port.settings.stated.items() if v is None or v == 0]
        names = stated or nothing or option.names
        values = ", ".join(f"{name}: {shown(port.settings.stated.get(name))}" for name in names)
        problem = f"{values}: {type(error).__name__}: {error}"
        raise UserError(f"{port.settings.source}: cannot be translated: {problem}") from error


def _lose(port: Port, option: Option, stated: Sequence[str]) -> None:
    for name in stated:
        if port.settings.stated[name] != option.default:
            value = port.settings.stated[name]
            port.lose(f"{name}: {shown(value)}", option.note)


def _unknown(options: Mapping[str, Option], settings: Settings) -> Mapping[str, str]:
    """The names that the table does not have, each with the end of a sentence: what is meant."""
    # With a space it is several arguments at once, or a statement.
    names = [name for name in (*settings.stated, *settings.unread) if " " not in name]
    unknown = {n: did_you_mean(n, options) for n in names if n not in options}
    if 2 * len(unknown) > len(names):
        name, hint = next(iter(unknown.items()))
        raise UserError(f"{settings.source}: unknown option {name!r}{hint}")
    return unknown


def _check(options: Mapping[str, Option], settings: Settings) -> None:
    for name, value in settings.stated.items():
        kinds = options[name].kind if name in options else ()
        # True is an int for Python, and no number for anybody else.
        wrong = isinstance(value, bool) and bool not in kinds
        if kinds and value is not None and (wrong or not isinstance(value, kinds)):
            expected = " or ".join(dict.fromkeys(NAMES.get(kind, kind.__name__) for kind in kinds))
            raise UserError(f"{settings.source}: {name}: expected {expected}, found {value!r}")
