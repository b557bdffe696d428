"""Reports: what writes a page into the folder of a run, or of an evaluation."""

from collections.abc import Callable
from pathlib import Path

from groupwise.building.making import make_part
from groupwise.plugins.resolved import ResolvedConfig

Report = Callable[[Path], Path]
"""Writes a file into a folder, from the other files there; returns its path."""


def build_reports(loaded: ResolvedConfig) -> list[Report]:
    """The reports that the configuration names, without a default one that is not installed."""
    return [make_part(plugin) for plugin in loaded.of("reports")]
