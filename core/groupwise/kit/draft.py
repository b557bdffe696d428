"""Draft: how `groupwise init` writes a first configuration for one kind of model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar

from groupwise.kit import foreign_json

ANSWERS = (
    *("answer", "solution", "target", "label", "gold", "output", "response"),
    *("ground_truth", "reference_answer", "final_answer", "canonical_solution"),
)
"""Usual names of columns with gold answers, the most common first."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a data set.

    path: its file or hub name; prompt, answer: names of its columns, answer "" if there is none;
    names: of all columns, empty for a hub data set, which is not downloaded; answers: those of the
    first rows.
    """

    path: str
    prompt: str
    answer: str
    names: Sequence[str] = ()
    answers: Sequence[str] = field(default=(), repr=False)


class Draft(ABC):
    """Registered as NAME by `register_drafts`, it is called by `groupwise init --NAME MODEL`.

    model: what it trains, as in "a language model".
    templates: a folder with `run.yaml`, the whole file, where `$task` stands for the sections of
        the task; `tasks/TASK.yaml`, these sections, for each task; if it can have one,
        `reward.yaml`, the same for a reward of the user's own, `$reward`; and `data.yaml`, by task
        the options of its default data set, with the column of answers as `answer`. In all of them
        stand `$about`, `$file`, `$stem`, `$model` and what `settings` returns; in a task also
        `$data`, the options of a data set, `$answer`, its column of answers, and what
        `data_settings` returns, or `$argument`, for a task that is named as TASK:ARGUMENT;
        `data.yaml` then has an example, as `argument`.
    """

    model: ClassVar[str]
    templates: ClassVar[Traversable]

    @abstractmethod
    def settings(self, model: str) -> Mapping[str, Any]:
        """Values that depend on the model, a folder or a hub name; nothing is downloaded."""

    def data_settings(self, data: Columns) -> Mapping[str, Any]:
        """Values for the template of a task that depend on its data set's answers."""
        return {}

    @abstractmethod
    def task_of(self, data: Columns) -> str:
        """The task that fits a data set best. Raises UserError if its columns do not tell."""


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object in a file of a model; empty if there is none that can be read."""
    try:
        content = foreign_json.read(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
