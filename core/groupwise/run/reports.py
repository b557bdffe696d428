"""Reports: what writes a page into the folder of a run, or of an evaluation."""

from collections.abc import Callable
from pathlib import Path

from groupwise.config.load import LoadedConfig
from groupwise.config.objects import Objects
from groupwise.config.sections import REPORT
from groupwise.plugins import registry as plugins
from groupwise.run.making import make_part

Report = Callable[[Path], Path]
"""Writes a file into a folder, from the other files there; returns its path."""


def build_report(loaded: LoadedConfig, objects: Objects) -> Report | None:
    """The report that the configuration names; None if it names none, or if the default one is not
    installed."""
    section = loaded.config.report
    if section is None or is_missing_default(loaded, objects):
        return None
    report: Report = make_part(loaded, objects, "reports", ("report",), section)
    return report


def is_missing_default(loaded: LoadedConfig, objects: Objects) -> bool:
    """Whether the report is the default one and no installed plugin registers it: no error."""
    is_default = loaded.config.report == REPORT and ("report",) not in objects
    return is_default and not plugins.installed().named("reports", REPORT.name)
