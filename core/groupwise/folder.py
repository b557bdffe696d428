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
KEPT = ("seed", "prompts.held_out")
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


def write_config(folder: Path, config: RunConfig, *, former: str | None = None) -> None:
    """Write config.yaml, whole or not at all; what it was before is kept by the name `former`."""
    path, fresh = folder / CONFIG, folder / f"{CONFIG}.new"
    fresh.write_text(dump(config), encoding="utf-8")
    if former is not None and path.exists():
        path.replace(folder / former)
    fresh.replace(path)


def changes(folder: Path, config: RunConfig) -> list[str]:
    """What a resumed run has different from the one in the folder: "train.steps: 200 -> 300".

    Raises UserError for what must stay: the seed, which names every prompt and sample, and the
    share held out, or prompts would be evaluated that were trained on.
    """
    path = folder / CONFIG
    if not path.exists():
        return []
    former = dict(_values(yaml_lines.read(path.read_text(encoding="utf-8"), str(path))[0] or {}))
    now = dict(_values(yaml_lines.read(dump(config), "configuration")[0]))
    for key in KEPT:
        if key in former and former[key] != now[key]:
            raise UserError(f"{key}: a run is resumed with its own, {former[key]}, not {now[key]}")
    keys = [key for key in {**former, **now} if key != "output"]
    pairs = ((key, former.get(key, "unset"), now.get(key, "unset")) for key in keys)
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
