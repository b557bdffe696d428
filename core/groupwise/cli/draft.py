"""Draft: the text of a new configuration, from the templates of this package."""

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
PUZZLES = "reasoning_gym"
COMMENT = re.compile(r"^(.*\S) {2,}# ", re.MULTILINE)
COMMENTS_AT = 32
"""Columns of a key and its value, before two blanks and its comment."""
MEANINGS = {
    "path": "a file, a folder or a hub name",
    "subset": "of what the hub has under that name",
    "prompt": "the column of prompts",
}
TOKENS = 1024
"""Of a completion, where the model's positions allow as many."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a user chose: a model of one of two modalities, and a task, or data, or both."""

    model: str
    modality: str
    task: str | None
    dataset: str | None
    prompt: str | None
    answer: str | None


def draft(choice: Choice, path: Path) -> str:
    """A configuration for these, to be written at this path, with a comment to each line.

    Raises UserError for a task that there is not, and for data that cannot be read.
    """
    local = Path(choice.model).exists()
    values = {
        "about": f"{choice.model}: made by `groupwise init`.",
        "file": path,
        "stem": path.stem,
        "model": _scalar(_from(path, choice.model)),
        **(_of_language_model(choice.model) if choice.modality == "text" else {}),
        **(_of_image_model(choice.model, local) if choice.modality == "image" else {}),
    }
    task, filled = _task(choice, path)
    part = _template(f"{choice.modality}/{task}.yaml").substitute({**values, **filled})
    whole = _template(f"{choice.modality}.yaml").substitute({**values, "task": part})
    return COMMENT.sub(lambda line: f"{line[1]:<{COMMENTS_AT}}  # ", whole)


def tasks(modality: str) -> list[str]:
    """The names of its tasks."""
    return sorted(each.name.removesuffix(".yaml") for each in (TEMPLATES / modality).iterdir())


def _task(choice: Choice, path: Path) -> tuple[str, Mapping[str, Any]]:
    """The task's name, and what its template is filled with."""
    task, _, puzzle = (choice.task or "").partition(":")
    known = tasks(choice.modality)
    if task and task not in known:
        raise UserError(
            f"--task {task}: unknown{did_you_mean(task, known)}; of {choice.modality} models there "
            f"are {', '.join(known)}"
        )
    if task == PUZZLES:
        if not puzzle:
            raise UserError(f"--task {PUZZLES}: name one of its tasks, as {PUZZLES}:chain_sum")
        return task, {"puzzle": _scalar(puzzle)}
    if choice.dataset is None:
        return task, _of_usual_data(task)
    data = _columns(choice, choice.dataset)
    task = task or (data.task if choice.modality == "text" else _of_pictures(data))
    if choice.modality == "text" and not data.answer:
        raise UserError(
            f"{choice.dataset} has no column of answers that is named as usual (it has "
            f"{', '.join(data.names)}); name it by --answer COLUMN. docs/rewards.md has rewards "
            f"that need no answers"
        )
    source = {"path": _from(path, choice.dataset), "prompt": data.prompt}
    return task, {"data": _prompts(source), "answer": _scalar(data.answer)}


def _of_usual_data(task: str) -> Mapping[str, Any]:
    """The same of a task that has data of its own. Raises UserError for one that has none."""
    usual = yaml_lines.read(_text("data.yaml"), "data.yaml")[0]
    if task not in usual:
        raise UserError(
            f"give --dataset FILE, or a --task that has prompts of its own: {', '.join(usual)} or "
            f"{PUZZLES}:TASK"
        )
    data = dict(usual[task])
    answer = data.pop("answer", "")
    return {"data": _prompts(data), "answer": answer}


def _columns(choice: Choice, dataset: str) -> Columns:
    """Those of the data; of a dataset of the hub, which is not fetched here, as they were named."""
    if Path(dataset).exists():
        return columns(Path(dataset), choice.prompt, choice.answer)
    if choice.task is None and choice.modality == "text":
        raise UserError(
            f"{dataset}: no such file; of a dataset of the hub say which answers it has, by "
            f"--task math, numbers or words"
        )
    return Columns(prompt=choice.prompt or "prompt", answer=choice.answer or "answer")


def _of_pictures(data: Columns) -> str:
    return "writing" if "text" in data.names and data.prompt != "text" else "preference"


def _prompts(source: Mapping[str, str]) -> str:
    """The lines of a section `prompts` that name a data set."""
    keys = [f"  {key}: {_scalar(value)}  # {MEANINGS[key]}" for key, value in source.items()]
    return "\n".join(["  name: dataset", *keys])


def _of_language_model(model: str) -> dict[str, Any]:
    """Whether it has a chat template, and how long its completions may be."""
    folder = Path(model)
    if not folder.is_dir():
        return {"chat": "true", "tokens": TOKENS}
    templates = ("chat_template.jinja", "chat_template.json")
    chat = "chat_template" in _facts(folder / "tokenizer_config.json") or any(
        (folder / name).exists() for name in templates
    )
    positions = _facts(folder / "config.json").get("max_position_embeddings", 2 * TOKENS)
    return {"chat": str(chat).lower(), "tokens": min(TOKENS, positions // 2)}


def _of_image_model(model: str, local: bool) -> dict[str, Any]:
    """Precision and guidance, which differ between the two architectures."""
    kind = _facts(Path(model) / "model_index.json").get("_class_name", "") if local else model
    flux = "flux" in str(kind).lower()
    return {"precision": "bf16" if flux else "fp16", "guidance": 3.5 if flux else 4.5}


def _facts(path: Path) -> Mapping[str, Any]:
    """A JSON file of a model; empty where it has none that can be read."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _from(path: Path, name: str) -> str:
    """A path as the configuration's folder sees it; a name that is no path, as it is."""
    if not Path(name).exists() or Path(name).is_absolute():
        return name
    return os.path.relpath(name, path.parent)


def _scalar(value: str) -> str:
    text = yaml_lines.write({"value": value}).removeprefix("value: ").strip()
    return json.dumps(value) if "\n" in text else text  # a long one with spaces is folded


def _template(name: str) -> Template:
    return Template(_text(name))


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
