"""draft: the text of a new configuration, from the templates of a plugin."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from groupwise.config.yaml_lines import read, write
from groupwise.kit.draft import Columns, Draft
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.options import nearest
from groupwise.registry import installed
from groupwise_commands.columns import columns

COMMENT = re.compile(r"^(.*\S) {2,}# ", re.MULTILINE)
WIDTH_BEFORE_COMMENT = 32
"""Characters of a line before the two spaces and the comment."""
REWARD = "reward.yaml"
"""The template for a reward of the user's own."""
FILES = (".csv", ".json", ".jsonl", ".parquet", ".tsv", ".txt")
"""What ends the name of a file, and of no data set on the hub."""
COMMENTS = {
    "path": "a file, a folder or a hub name",
    "subset": "the name of a part of a hub data set",
    "prompt": "the column of prompts",
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The user's choice: a model, and a task, a data set, or both.

    prompt, answer: names of the data set's columns; None to recognise them by usual names.
    reward: in place of a task, the reward for a data set, as a configuration names it.
    """

    model: str
    task: str | None
    dataset: str | None
    prompt: str | None
    answer: str | None
    reward: str | None = None


def drafts() -> dict[str, Draft]:
    """All registered drafts by name, which is their option of `groupwise init`, too."""
    names = {entry.name for entry in installed().entries if entry.kind == "drafts"}
    kinds = {name: installed().load("drafts", name)() for name in names}
    return dict(sorted(kinds.items(), key=lambda item: item[1].model))


def draft(kind: Draft, choice: Choice, path: Path) -> str:
    """The text of a configuration that will be written to `path`, with aligned comments.

    Raises UserError if the task is unknown or the data cannot be read.
    """
    values = {
        "about": f"{choice.model}: made by `groupwise init`.",
        "file": path,
        "stem": path.stem,
        "model": _scalar(_relative(choice.model, path.parent)),
        **kind.settings(choice.model),
    }
    if choice.reward is None:
        task, task_values = _task(kind, choice, path)
        template = f"tasks/{task}.yaml"
    else:
        template, task_values = REWARD, _for_reward(kind, choice, choice.reward, path)
    sections = _template(kind, template).substitute({**values, **task_values})
    text = _template(kind, "run.yaml").substitute({**values, "task": sections})
    return COMMENT.sub(lambda line: f"{line[1]:<{WIDTH_BEFORE_COMMENT}}  # ", text)


def tasks(kind: Draft) -> list[str]:
    """The names of the tasks of a kind of model."""
    files = (kind.templates / "tasks").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files)


def shown(kind: Draft, task: str) -> str:
    """A task as the user names it."""
    return f"{task}:TASK" if "argument" in _defaults(kind).get(task, {}) else task


def _task(kind: Draft, choice: Choice, path: Path) -> tuple[str, Mapping[str, Any]]:
    """The task's name, and the values for its template."""
    task, _, argument = (choice.task or "").partition(":")
    known, defaults = tasks(kind), _defaults(kind)
    if task and task not in known:
        raise UserError(
            f"--task {task}: unknown{did_you_mean(task, known)}; for {kind.model} there are "
            f"{', '.join(known)}"
        )
    example = defaults.get(task, {}).get("argument")
    if example is not None:
        if not argument:
            raise UserError(f"--task {task}: name one of its tasks, as {task}:{example}")
        return task, {"argument": _scalar(argument)}
    if choice.dataset is None:
        if task not in defaults:
            raise UserError(
                f"give --dataset FILE, or a --task that has prompts of its own: "
                f"{' or '.join(shown(kind, each) for each in defaults)}"
            )
        source = dict(defaults[task])
        data = Columns(path=source.get("path", ""), prompt=source.get("prompt", ""), answer="")
        values = {**kind.data_settings(data), "answer": source.pop("answer", "")}
        return task, {**values, "data": _dataset_lines(source)}
    data = _columns(choice, choice.dataset)
    task = task or kind.task_of(data)
    if not data.answer and "answer" in _template(kind, f"tasks/{task}.yaml").get_identifiers():
        raise UserError(
            f"{choice.dataset} has no column of answers with a usual name (its columns are "
            f"{', '.join(data.names)}); set --answer COLUMN. For rewards that need no answers see "
            f"docs/rewards.md"
        )
    values = {**kind.data_settings(data), "answer": _scalar(data.answer)}
    return task, {**values, "data": _lines_of(choice, data, path)}


def _for_reward(kind: Draft, choice: Choice, reward: str, path: Path) -> Mapping[str, Any]:
    """The values for the template of a reward of the user's own."""
    if not (kind.templates / REWARD).is_file():
        raise UserError(f"for {kind.model} there is no draft with --reward; name a --task")
    if choice.task is not None:
        raise UserError("--reward is instead of --task, which has rewards of its own")
    if choice.dataset is None:
        raise UserError("--reward needs the prompts, by --dataset FILE")
    if choice.answer is not None:
        raise UserError(
            "--answer is for a --task; a reward of your own gets the columns named by its arguments"
        )
    data = _columns(choice, choice.dataset)
    return {"data": _lines_of(choice, data, path), "reward": _scalar(reward)}


def _lines_of(choice: Choice, data: Columns, path: Path) -> str:
    assert choice.dataset is not None
    source = {"path": _relative(choice.dataset, path.parent), "prompt": data.prompt}
    return _dataset_lines(source)


def _columns(choice: Choice, dataset: str) -> Columns:
    """The columns of a file; of a hub data set, which is not downloaded, those of the choice."""
    if not Path(dataset).exists() and Path(dataset).suffix in FILES:
        raise UserError(f"{dataset}: no such file{nearest(dataset, [])}")
    if Path(dataset).exists():
        return columns(Path(dataset), choice.prompt, choice.answer)
    prompt, answer = choice.prompt or "prompt", choice.answer or "answer"
    return Columns(path=dataset, prompt=prompt, answer=answer)


def _dataset_lines(source: Mapping[str, str]) -> str:
    """The lines of a section `prompts` that name a data set."""
    keys = [f"  {key}: {_scalar(value)}  # {COMMENTS[key]}" for key, value in source.items()]
    return "\n".join(["  name: dataset", *keys])


def _relative(name: str, folder: Path) -> str:
    """A path relative to the configuration's folder; a hub name or absolute path unchanged."""
    if not Path(name).exists() or Path(name).is_absolute():
        return name
    return os.path.relpath(name, folder)


def _scalar(value: str) -> str:
    """A string as YAML, on one line."""
    text = write({"value": value}).removeprefix("value: ").strip()
    return json.dumps(value) if "\n" in text else text  # YAML folds long strings with spaces


def _template(kind: Draft, name: str) -> Template:
    return Template((kind.templates / name).read_text(encoding="utf-8"))


def _defaults(kind: Draft) -> Mapping[str, Any]:
    """By task, the options of its default data set, or an example of its argument."""
    text = (kind.templates / "data.yaml").read_text(encoding="utf-8")
    defaults: Mapping[str, Any] = read(text, "data.yaml")[0]
    return defaults
