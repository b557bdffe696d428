"""Stand-ins: for prompts and rewards that were Python objects, where completions are only read."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.config.load import LoadedConfig
from groupwise.config.plugin_sections import kind_at
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.storage.files import BEFORE, TRAINING
from groupwise.storage.run_info import passed_objects
from groupwise.storage.samples import read_samples


def with_stand_ins(loaded: LoadedConfig, run: Path) -> LoadedConfig:
    """The configuration of a run whose prompts and rewards need not be passed again.

    In place of prompts that were Python objects are those that the run has recorded, which say
    whether they are texts or messages; in place of rewards, functions that return None. Nothing is
    evaluated. Objects that are passed are kept.
    """
    config, objects = loaded.config, dict(loaded.objects)
    for path in passed_objects(run):
        if path in objects:
            continue
        if kind_at(path) == "rewards":
            objects[path] = unscored
        elif kind_at(path) == "prompts" and (rows := [*_recorded(run, config.prompts.key)]):
            objects[path] = rows
    nothing = config.evaluation.model_copy(update={"prompts": 0})
    config = config.model_copy(update={"evaluation": nothing})
    return replace(loaded, config=config, objects=objects)


def unscored(completions: Sequence[Any], **_: Any) -> list[None]:
    """A reward that applies to nothing."""
    return [None] * len(completions)


def _recorded(run: Path, key: str | None) -> Iterator[Row]:
    """A row for each recorded completion, with its prompt in the column of questions, too."""
    for name in (TRAINING, BEFORE):
        try:
            samples = read_samples(run / name)
        except ValueError as error:
            raise UserError(str(error)) from error
        for sample in samples:
            yield {key or "prompt": sample["prompt"], "prompt": sample["prompt"]}
