"""How a run was made, as HTML: its commands, packages and devices, from run.json."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from groupwise_report.document import folded, table
from groupwise_report.run_data import Row, RunData
from groupwise_report.wording import brief, display, number, text

MOST = 4000  # characters of a command
_TIMES = "\N{MULTIPLICATION SIGN}"
_ARROW = "\N{RIGHTWARDS ARROW}"
_FACTS = {"processes": "processes", "cores": "cores", "memory": "memory, GiB", "system": "system",
          "python": "Python", "cuda": "CUDA"}  # fmt: skip


def starts(run: RunData) -> str:
    """The folded section; "" for a run that noted nothing."""
    if not run.starts:
        return ""
    last = run.starts[-1]
    rows = [(words, brief(last[key])) for key, words in _FACTS.items() if last.get(key) is not None]
    rows = [("devices", _devices(last)), *rows] if _named(last, "devices") else rows
    cards = (
        _commands(run.starts),
        table("Machine", ("", ""), rows),
        table("Packages that changed", ("", "at step", "version"), _changes(run.starts)),
        _packages(last),
    )
    return folded("Command and environment", f'<div class="charts">{"".join(cards)}</div>')


def _packages(start: Row) -> str:
    versions = "".join(
        f"<span>{brief(name)} <b>{brief(version)}</b></span>"
        for name, version in _named(start, "packages").items()
    )
    inside = f'<h3>Packages</h3><div class="scores">{versions}</div>'
    return f'<div class="card full">{inside}</div>' if versions else ""


def _commands(noted: Sequence[Row]) -> str:
    rows = [
        (f"step {_step(each)}", _time(each), f"<code>{text(_cut(each))}</code>") for each in noted
    ]
    return table("Commands", ("from", "at", "command"), rows, kind="commands full")


def _time(start: Row) -> str:
    """To the minute."""
    return brief(str(start.get("time", "")).replace("T", " ").replace("+00:00", " UTC"))


def _cut(start: Row) -> str:
    command = str(start.get("command", ""))
    return command if len(command) <= MOST else f"{command[:MOST]}…"


def _step(start: Row) -> str:
    step = number(start.get("step"))
    return "?" if step is None else display(step)


def _devices(start: Row) -> str:
    counts = _named(start, "devices").items()
    return ", ".join(f"{brief(count)} {_TIMES} {brief(name)}" for name, count in counts)


def _changes(noted: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Packages that had another version when the run was resumed."""
    return [
        (brief(name), _step(now), f"{brief(was)} {_ARROW} {brief(version)}")
        for before, now in pairwise(noted)
        for name, version in _named(now, "packages").items()
        if (was := _named(before, "packages").get(name, version)) != version
    ]


def _named(start: Row, key: str) -> Mapping[str, object]:
    value = start.get(key)
    return value if isinstance(value, Mapping) else {}
