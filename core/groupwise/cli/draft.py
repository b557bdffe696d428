"""Draft: writes the text of a new configuration from the templates of this package."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from groupwise.cli.columns import Columns, columns
from groupwise.config import yaml_lines
from groupwise.errors import UserError, did_you_mean

TEMPLATES = files("groupwise.cli") / "templates"
MODALITIES = ("text", "image")
REASONING_GYM = "reasoning_gym"
COMMENT = re.compile(r"^(.*\S) {2,}# ", re.MULTILINE)
WIDTH_BEFORE_COMMENT = 32
"""Characters of a line before the two spaces and the comment."""
COMMENTS = {
    "path": "a file, a folder or a hub name",
    "subset": "the name of a part of a hub data set",
    "prompt": "the column of prompts",
}
MAX_NEW_TOKENS = 1024
"""The longest completion, unless the model has fewer than twice as many positions."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The user's choice: a model, its modality, and a task, a data set, or both.

    prompt, answer: names of the data set's columns; None to recognise them by usual names.
    """

    model: str
    modality: str
    task: str | None
    dataset: str | None
    prompt: str | None
    answer: str | None


def draft(choice: Choice, path: Path) -> str:
    """The text of a configuration that will be written to `path`, with aligned comments.

    Raises UserError if the task is unknown or the data cannot be read.
    """
    values = {
        "about": f"{choice.model}: made by `groupwise init`.",
        "file": path,
        "stem": path.stem,
        "model": _scalar(_relative(choice.model, path.parent)),
        **(_text_settings if choice.modality == "text" else _image_settings)(choice.model),
    }
    task, task_values = _task(choice, path)
    sections = _template(f"{choice.modality}/{task}.yaml").substitute({**values, **task_values})
    text = _template(f"{choice.modality}.yaml").substitute({**values, "task": sections})
    return COMMENT.sub(lambda line: f"{line[1]:<{WIDTH_BEFORE_COMMENT}}  # ", text)


def tasks(modality: str) -> list[str]:
    """The names of the tasks of a modality."""
    return sorted(file.name.removesuffix(".yaml") for file in (TEMPLATES / modality).iterdir())


def _task(choice: Choice, path: Path) -> tuple[str, Mapping[str, Any]]:
    """The task's name, and the values for its template."""
    task, _, puzzle = (choice.task or "").partition(":")
    known = tasks(choice.modality)
    if task and task not in known:
        raise UserError(
            f"--task {task}: unknown{did_you_mean(task, known)}; of {choice.modality} models there "
            f"are {', '.join(known)}"
        )
    if task == REASONING_GYM:
        if not puzzle:
            raise UserError(
                f"--task {REASONING_GYM}: name one of its tasks, as {REASONING_GYM}:chain_sum"
            )
        return task, {"puzzle": _scalar(puzzle)}
    if choice.dataset is None:
        return task, _default_data(task)
    data = _columns(choice, choice.dataset)
    task = task or (data.task if choice.modality == "text" else _image_task(data))
    if choice.modality == "text" and not data.answer:
        raise UserError(
            f"{choice.dataset} has no column of answers with a usual name (its columns are "
            f"{', '.join(data.names)}); set --answer COLUMN. For rewards that need no answers see "
            f"docs/rewards.md"
        )
    source = {"path": _relative(choice.dataset, path.parent), "prompt": data.prompt}
    return task, {"data": _dataset_lines(source), "answer": _scalar(data.answer)}


def _default_data(task: str) -> Mapping[str, Any]:
    """Template values for the default data set of a task. Raises UserError if it has none."""
    defaults = yaml_lines.read(_text("data.yaml"), "data.yaml")[0]
    if task not in defaults:
        raise UserError(
            f"give --dataset FILE, or a --task that has prompts of its own: {', '.join(defaults)} "
            f"or {REASONING_GYM}:TASK"
        )
    data = dict(defaults[task])
    answer = data.pop("answer", "")
    return {"data": _dataset_lines(data), "answer": answer}


def _columns(choice: Choice, dataset: str) -> Columns:
    """The columns of a file; of a hub data set, which is not downloaded, the names of the choice.

    Raises UserError for a hub data set of text without a task.
    """
    if Path(dataset).exists():
        return columns(Path(dataset), choice.prompt, choice.answer)
    if choice.task is None and choice.modality == "text":
        raise UserError(
            f"{dataset}: no such file; of a dataset on the hub set the kind of its answers, by "
            f"--task math, numbers or words"
        )
    return Columns(prompt=choice.prompt or "prompt", answer=choice.answer or "answer")


def _image_task(data: Columns) -> str:
    return "writing" if "text" in data.names and data.prompt != "text" else "preference"


def _dataset_lines(source: Mapping[str, str]) -> str:
    """The lines of a section `prompts` that name a data set."""
    keys = [f"  {key}: {_scalar(value)}  # {COMMENTS[key]}" for key, value in source.items()]
    return "\n".join(["  name: dataset", *keys])


def _text_settings(model: str) -> dict[str, Any]:
    """Whether a language model has a chat template, and how long its completions may be."""
    folder = Path(model)
    if not folder.is_dir():
        return {"chat": "true", "tokens": MAX_NEW_TOKENS}
    templates = ("chat_template.jinja", "chat_template.json")
    chat = "chat_template" in _read_json(folder / "tokenizer_config.json") or any(
        (folder / name).exists() for name in templates
    )
    default = 2 * MAX_NEW_TOKENS
    positions = _read_json(folder / "config.json").get("max_position_embeddings", default)
    return {"chat": str(chat).lower(), "tokens": min(MAX_NEW_TOKENS, positions // 2)}


def _image_settings(model: str) -> dict[str, Any]:
    """Precision and guidance, which differ between FLUX.1 and Stable Diffusion 3."""
    is_local = Path(model).exists()
    name = _read_json(Path(model) / "model_index.json").get("_class_name") if is_local else model
    is_flux = "flux" in str(name).lower()
    return {"precision": "bf16" if is_flux else "fp16", "guidance": 3.5 if is_flux else 4.5}


def _read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object in a file of a model; empty if there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _relative(name: str, folder: Path) -> str:
    """A path relative to the configuration's folder; a hub name or absolute path unchanged."""
    if not Path(name).exists() or Path(name).is_absolute():
        return name
    return os.path.relpath(name, folder)


def _scalar(value: str) -> str:
    """A string as YAML, on one line."""
    text = yaml_lines.write({"value": value}).removeprefix("value: ").strip()
    return json.dumps(value) if "\n" in text else text  # YAML folds long strings with spaces


def _template(name: str) -> Template:
    return Template(_text(name))


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
