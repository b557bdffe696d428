"""Reports: what writes a page into the folder of a run, or of an evaluation."""

from collections.abc import Callable
from pathlib import Path

from groupwise import registry as plugins
from groupwise.building.making import make_part
from groupwise.config.load import LoadedConfig
from groupwise.config.plugin_sections import section_at
from groupwise.config.sections import HTML
from groupwise.kit.section import KeyPath

Report = Callable[[Path], Path]
"""Writes a file into a folder, from the other files there; returns its path."""


def build_reports(loaded: LoadedConfig) -> list[Report]:
    """The reports that the configuration names, without a default one that is not installed."""
    paths: list[KeyPath] = [("reports", number) for number in range(len(loaded.config.reports))]
    return [make_part(loaded, path) for path in paths if not is_missing_default(loaded, path)]


def is_missing_default(loaded: LoadedConfig, path: KeyPath) -> bool:
    """Whether a section names the default report and no installed plugin registers it: no error."""
    if path[0] != "reports" or path in loaded.objects or section_at(loaded.config, path) != HTML:
        return False
    return not plugins.installed().named("reports", HTML.name)
