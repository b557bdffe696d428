"""The differences between the configurations of several runs, as a table."""

from collections.abc import Mapping, Sequence

from groupwise.kit import secrets
from groupwise.storage.run_info import values
from groupwise_report.document import table
from groupwise_report.run_data import RunData
from groupwise_report.wording import brief

MOST_KEYS = 200
LONGEST_VALUE = 200  # characters
EN_DASH = "\N{EN DASH}"


def differences(runs: Sequence[RunData], heads: Sequence[str]) -> str:
    """A row for each key whose values differ, a column for each run; heads: of columns, as HTML."""
    settings = [dict(values(secrets.masked(run.settings))) for run in runs]
    known = [number for number, each in enumerate(settings) if each]
    keys = dict.fromkeys(key for each in settings for key in each if key != "output")
    different = [key for key in keys if not _is_same(key, [settings[n] for n in known])]
    notes = [f"{heads[n]} has no configuration yet." for n in range(len(runs)) if n not in known]
    if len(known) > 1 and not different:
        notes.append("All keys are the same.")
    if len(different) > MOST_KEYS:
        notes.append(f"{len(different) - MOST_KEYS:,} more keys differ.")
    rows = [
        (f"<code>{brief(key)}</code>", *(_cell(settings[n], key) for n in known))
        for key in different[:MOST_KEYS]
    ]
    shown = table("", ("key", *(heads[n] for n in known)), rows, kind="whole differences")
    return shown + "".join(f'<p class="intro">{note}</p>' for note in notes)


def _is_same(key: str, settings: Sequence[Mapping[str, object]]) -> bool:
    return len({repr(each.get(key)) for each in settings}) < 2


def _cell(settings: Mapping[str, object], key: str) -> str:
    return brief(settings[key], LONGEST_VALUE) if key in settings else EN_DASH
