"""Tracker: the base class of trackers, each with accelerate's tracker of the same name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

from groupwise import secrets
from groupwise.config.tracking import TrackerSection
from groupwise.tracking.samples import SampleTable


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The facts about a run with which a tracker is opened.

    folder: of the run; settings: the configuration by dotted key, secrets masked; step: steps done
    so far, 0 in a new run; identity: `Tracker.identity` from when this run was first tracked, empty
    if it never was.
    """

    folder: Path
    settings: Mapping[str, Any]
    step: int = 0
    identity: Mapping[str, Any]


class Tracker(ABC):
    """Opens accelerate's tracker of this name and sends metrics and completions to it.

    remote: options that name a server, and are refused with `offline`.
    """

    name: ClassVar[str]
    remote: ClassVar[tuple[str, ...]] = ()

    def __init__(self, section: TrackerSection) -> None:
        self.section = section
        self.tracker: Any = None

    @classmethod
    def is_installed(cls) -> bool:
        """Whether accelerate can import its package."""
        return bool(filter_trackers([cls.name], logging_dir="."))

    def open(self, opening: Opening) -> None:
        """Start the tracker's run, or continue the one of the identity."""
        arguments = {**self.arguments(opening), **self.options}
        self.tracker = LOGGER_TYPE_TO_CLASS[self.name](**arguments)
        self.tracker.start()

    @property
    def options(self) -> dict[str, Any]:
        """The section's options for the tracker's own init function, with their secrets."""
        return dict(secrets.revealed(self.section.options))

    @abstractmethod
    def arguments(self, opening: Opening) -> dict[str, Any]:
        """Arguments of accelerate's class; the section's own options replace those of their name.

        What accelerate calls `run_name` is the project.
        """

    @property
    def identity(self) -> dict[str, Any]:
        """The arguments that continue this run of the tracker after a resume, as JSON."""
        return {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.tracker.log(dict(metrics), step=step)

    @abstractmethod
    def show(self, shown: SampleTable, step: int) -> None:
        """Log completions of an evaluation; the table has at least one row."""

    def close(self) -> None:
        self.tracker.finish()

    def run_name(self, opening: Opening) -> str:
        return self.section.run or opening.folder.name
