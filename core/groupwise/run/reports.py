"""Reports: what writes a page into the folder of a run, or of an evaluation."""

from collections.abc import Callable
from pathlib import Path

from groupwise.config.load import LoadedConfig
from groupwise.config.objects import Objects
from groupwise.config.section import PluginSection
from groupwise.config.sections import HTML
from groupwise.config.yaml_lines import KeyPath
from groupwise.plugins import registry as plugins
from groupwise.run.making import make_part

Report = Callable[[Path], Path]
"""Writes a file into a folder, from the other files there; returns its path."""


def build_reports(loaded: LoadedConfig, objects: Objects) -> list[Report]:
    """The reports that the configuration names, without a default one that is not installed."""
    sections = {("reports", number): each for number, each in enumerate(loaded.config.reports)}
    return [
        make_part(loaded, objects, "reports", path, section)
        for path, section in sections.items()
        if not is_missing_default(section, path, objects)
    ]


def is_missing_default(section: PluginSection, path: KeyPath, objects: Objects) -> bool:
    """Whether a section names the default report and no installed plugin registers it: no error."""
    is_default = path[0] == "reports" and section == HTML and path not in objects
    return is_default and not plugins.installed().named("reports", HTML.name)
