"""Folder: a run's place on disk before the run begins; what is in the way, what is gone on with."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from groupwise import yaml_lines
from groupwise.config import dump
from groupwise.errors import UserError
from groupwise.sections import RunConfig

CONFIG = "config.yaml"
MOST = 10
"""Changes that are told one by one."""


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise UserError where the run's folder is in the way, or is missing for --resume."""
    if resume and not folder.exists():
        raise UserError(f"nothing to resume: there is no {folder}")
    if resume or not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"output: {folder} is a file; choose another folder by output=FOLDER")
    names = {path.name for path in folder.iterdir()}
    if names <= {CONFIG, "samples"} and CONFIG in names:
        return  # a run that ended before its first step: nothing is lost with it
    if names and not overwrite:
        raise UserError(
            f"{folder} exists; go on with it by --resume, replace it by --overwrite, or choose "
            f"another folder by output=FOLDER"
        )
    if names and CONFIG not in names:
        raise UserError(f"--overwrite replaces runs only, and {folder} does not look like one")


def make_folder(folder: Path) -> None:
    """An empty folder in place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
    except PermissionError as error:
        raise UserError(f"output: no permission to write {folder}") from error


def write_config(folder: Path, config: RunConfig) -> None:
    (folder / CONFIG).write_text(dump(config), encoding="utf-8")


def changes(folder: Path, config: RunConfig) -> list[str]:
    """What a resumed run has different from the one in the folder: "train.steps: 200 -> 300".

    Raises UserError for another seed: every prompt and every sample is named by it.
    """
    path = folder / CONFIG
    if not path.exists():
        return []
    former = dict(_values(yaml_lines.read(path.read_text(encoding="utf-8"), str(path))[0]))
    now = dict(_values(yaml_lines.read(dump(config), "configuration")[0]))
    if former.get("seed") != now["seed"]:
        raise UserError(
            f"seed: a run is resumed with the seed it began with, {former.get('seed')}, "
            f"found {now['seed']}"
        )
    keys = [key for key in {**former, **now} if key != "output"]
    pairs = ((key, former.get(key), now.get(key)) for key in keys)
    found = [f"{key}: {was} -> {becomes}" for key, was, becomes in pairs if was != becomes]
    more = [f"{len(found) - MOST} other changes"] if len(found) > MOST else []
    return found[:MOST] + more


def _values(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no section, by its dotted key."""
    inner = data.items() if isinstance(data, Mapping) else enumerate(data)
    for key, value in inner:
        name = f"{path}{key}"
        if isinstance(value, Mapping) or (isinstance(value, list) and value):
            yield from _values(value, f"{name}.")
        else:
            yield name, value
