"""RunInfo: config.yaml and run.json, which a run writes about itself, for resuming it."""

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.config import yaml_lines
from groupwise.config.load import LoadedConfig, dump, load_config, sections
from groupwise.config.objects import Objects, is_model
from groupwise.config.sections import RunConfig
from groupwise.kit import secrets
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath
from groupwise.storage.disk import read_record, read_text, readable_record, reason, write
from groupwise.storage.files import CONFIG, MODEL, RUN_INFO
from groupwise.version import __version__

KEPT = ("seed", "prompts.held_out", "prompts.key")
"""Keys that a resumed run cannot change: they determine all samples and the held-out split."""
_OF_LEARNER = re.compile(r"^players\.\d+\.")
STATED = ("policy", "teacher", "prompts", "rewards", "evaluation.source")
"""Sections that a resumed run changes only by its own command line."""
WATCHING = ("callbacks", "reports", "tracking")
"""Sections whose parts change no run, so that it can be resumed without them."""
MOST_STARTS = 20
"""The most starts of a run that are noted: its first, and the last ones."""
MOST = 10
"""The most changes that a message lists one by one."""


def read_config(path: Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> LoadedConfig:
    """Read a configuration file.

    For config.yaml in a run's folder, relative paths have the base that the run had, and `output`
    is that folder.
    """
    if path.name != CONFIG or not (path.parent / RUN_INFO).exists():
        return load_config(path, overrides)
    info = _run_info(path.parent)
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise UserError(f"{path} is damaged: expected a file")
    folder = Path(info["config_folder"])
    if not folder.is_dir():
        raise UserError(
            f"{path.parent}: the folder {folder}, which the run's relative paths start from, is "
            f"gone; if the project was moved, use its configuration file: `groupwise train CONFIG "
            f"--resume output={path.parent}`"
        )
    loaded = load_config(path, overrides, folder=folder)
    config = loaded.config
    if ("output",) not in loaded.origin.overridden:
        config = config.model_copy(update={"output": path.parent})
    return replace(loaded, config=config, begun_in=Path(info["begun_in"]))


def _run_info(folder: Path) -> dict[str, Any]:
    """The content of run.json, {} if there is none. Raises UserError if it is damaged."""
    path = folder / RUN_INFO
    if not path.exists():
        return {}
    try:
        info = read_record(path)
    except ValueError as error:
        raise UserError(str(error)) from error
    if not isinstance(info.get("config_folder"), str):
        raise UserError(f"{path} is damaged: it has no config_folder")
    return {"begun_in": info["config_folder"], **info}


def run_config(run: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """The configuration of the run in a folder. Raises UserError if there is no run."""
    for name in (CONFIG, RUN_INFO):
        if not (run / name).exists():
            raise UserError(no_run(run, name))
    return read_config(run / CONFIG, overrides)


def no_run(folder: Path, missing: str) -> str:
    """Why a folder is not that of a run, as a file is missing there; with the runs in it."""
    if not folder.exists():
        return f"no such folder: {folder}"
    held = sorted(path.parent.name for path in folder.glob(f"*/{RUN_INFO}"))
    names = ", ".join(held[:MOST]) + (", ..." if len(held) > MOST else "")
    counted = "a run" if len(held) == 1 else f"{len(held)} runs"
    holds = f"; it holds {counted}: {names}" if held else ""
    return f"{folder} is not the folder of a run: it has no {missing}{holds}"


def write_run_info(
    folder: Path,
    loaded: LoadedConfig,
    *,
    run: str,
    start: Mapping[str, Any],
    accuracy: str | None = None,
    files: Sequence[str] = (),
) -> None:
    """Write run.json: the base of the run's paths, which parts were passed in Python, and how the
    run was started.

    run: the identity of the run, which its checkpoints have, too; start: the command, packages and
    devices of this start; accuracy: the reward that tells right from wrong; files: names of what
    callbacks write into the folder. Starts and files are added to those of the run so far.
    """
    info = {
        "groupwise": __version__,
        "run": run,
        "accuracy": accuracy,
        "folder": str(folder.resolve()),
        "config_folder": str(loaded.folder.resolve()),
        "begun_in": str(loaded.begun_in or Path.cwd()),
        "objects": sorted(
            ".".join(map(str, path)) for path in loaded.objects if path[0] not in WATCHING
        ),
        "files": sorted({*files, *callback_files(folder)}),
        "starts": [*_kept_starts(starts(folder)), start],
    }
    write(folder / RUN_INFO, json.dumps(info, indent=2) + "\n")


def starts(folder: Path) -> list[Mapping[str, Any]]:
    """By which commands, with which packages and on which devices the run in a folder was started
    and resumed; [] if that is not known."""
    noted = readable_record(folder / RUN_INFO).get("starts")
    return [each for each in noted if isinstance(each, dict)] if isinstance(noted, list) else []


def _kept_starts(noted: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [*noted[:1], *noted[1:][-(MOST_STARTS - 2) :]]


def callback_files(folder: Path) -> frozenset[str]:
    """The names of what the callbacks of the run in a folder write there."""
    names = readable_record(folder / RUN_INFO).get("files")
    return frozenset(map(str, names)) if isinstance(names, list) else frozenset()


def identity(folder: Path) -> str | None:
    """The identity of the run in a folder; None if there is no run yet."""
    name = _run_info(folder).get("run")
    return None if name is None else str(name)


def passed_objects(folder: Path) -> list[KeyPath]:
    """Where Python objects were passed to the run in a folder, by the key paths of sections and
    options."""
    names = _run_info(folder).get("objects", [])
    return [tuple(int(p) if p.isdecimal() else p for p in name.split(".")) for name in names]


def check_objects(folder: Path, objects: Objects) -> None:
    """Raise UserError if Python objects that were passed to the run are missing now.

    Only their names are recorded, and the same names may be registered for something else.
    """
    missing = [path for path in passed_objects(folder) if path not in objects]
    if missing:
        advice = "resume or evaluate it from Python, with the same objects"
        if any(map(is_model, missing)):
            advice = (
                f"evaluate it from Python, with the same objects; a run whose model is an object "
                f"cannot be resumed, and {folder / MODEL} has the trained one"
            )
        names = ", ".join(".".join(map(str, path)) for path in missing)
        raise UserError(f"{folder}: the run was started with Python objects for {names}: {advice}")


def write_config(folder: Path, config: RunConfig, *, former: str | None = None) -> None:
    """Write config.yaml; the old file is kept under the name `former`, numbered if that exists."""
    path = folder / CONFIG
    if former is not None and path.exists():
        shutil.copy2(path, first_free(folder / former))
    write(path, dump(config))


def first_free(path: Path) -> Path:
    """The path, with a number appended if it exists already."""
    numbered = (path.with_name(f"{path.stem}_{n}{path.suffix}") for n in range(2, 10_001))
    return next(p for p in itertools.chain([path], numbered) if not os.path.lexists(p))


def changes(folder: Path, loaded: LoadedConfig) -> list[str]:
    """The changes of a resumed run's configuration, such as "train.steps: 200 -> 300".

    Raises UserError for changes that are not allowed: of the seed, which determines all samples; of
    the held-out split, or prompts would be evaluated that were trained on; and of data, model or
    rewards, unless this command line sets them.
    """
    path = folder / CONFIG
    if not path.exists():
        return []
    former = dict(values(secrets.masked(_sections(path))))
    now = written(loaded.config)
    check_kept({key: former.get(key) for key in KEPT}, loaded.config)
    keys = [key for key in {**former, **now} if key != "output"]
    pairs = [(key, former.get(key, "unset"), now.get(key, "unset")) for key in keys]
    different = [(key, was, becomes) for key, was, becomes in pairs if was != becomes]
    for key, was, becomes in different:
        by_secret = secrets.same(key, was, becomes)
        if _is_in(key, STATED) and not _is_in(key, loaded.stated) and not by_secret:
            raise UserError(
                f"{key}: the run was started with {was}, but {loaded.origin.source} has {becomes}. "
                f"`groupwise resume {loaded.config.output}` resumes it with its own configuration; "
                f"to change this key, set it on the command line: {key}={becomes}"
            )
    lines = [f"{key}: {was} -> {becomes}" for key, was, becomes in different]
    more = [f"{len(lines) - MOST} other changes"] if len(lines) > MOST else []
    return [*_moved(folder, loaded), *lines[:MOST], *more]


def _sections(path: Path) -> Mapping[str, Any]:
    """A run's config.yaml as plain data. Raises UserError if it is damaged."""
    try:
        data = yaml_lines.read(read_text(path), str(path))[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {reason(error)}") from error
    if not isinstance(data, Mapping) or not data:
        raise UserError(
            f"{path} is damaged: it holds no sections; remove the file to resume the run with the "
            f"configuration of this command"
        )
    return data


def settings_of(text: str) -> Mapping[str, Any]:
    """The sections of a configuration's text as plain data, unchecked; {} if it is damaged."""
    try:
        data, _ = yaml_lines.read(text, CONFIG)
    except UserError:
        return {}
    return data if isinstance(data, Mapping) else {}


def masked_text(text: str, settings: Mapping[str, Any]) -> str:
    """A configuration's text with its secrets masked: an old version may have written some.

    settings: those of the text.
    """
    masked = secrets.masked(settings)
    return text if masked is settings else yaml_lines.write(masked)


def _moved(folder: Path, loaded: LoadedConfig) -> Iterator[str]:
    """Notes if the base of relative paths, or the run's folder, has moved."""
    info = _run_info(folder)
    was, becomes = info.get("config_folder"), str(loaded.folder.resolve())
    if was is not None and was != becomes:
        yield f"paths relative to: {was} -> {becomes}"
    elif info.get("folder", str(folder.resolve())) != str(folder.resolve()):
        yield f"the run moved here from {info['folder']}; its paths are relative to {was}"


def written(config: RunConfig) -> dict[str, Any]:
    """Every value of a configuration by its dotted key, secrets masked."""
    return dict(values(sections(config)))


def kept(config: RunConfig) -> dict[str, Any]:
    """The values that no resumed run can change, by dotted key."""
    by_key = written(config)
    return {key: by_key.get(key) for key in KEPT}


def check_kept(former: Mapping[str, Any], config: RunConfig) -> None:
    """Raise UserError if the configuration changes a run's seed or held-out split."""
    for key, becomes in kept(config).items():
        was = former.get(key)
        if was != becomes:
            unset = "unset"
            raise UserError(
                f"{key}: a run must be resumed and evaluated with its own value, "
                f"{unset if was is None else was}, found {unset if becomes is None else becomes}"
            )


def _is_in(key: str, sections: Sequence[str]) -> bool:
    """Whether a dotted key is one of the sections or in one, also of a learner."""
    own = _OF_LEARNER.sub("", key)
    return any(f"{name}.".startswith(f"{each}.") for name in {key, own} for each in sections)


def values(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no section, with its dotted key."""
    inner = data.items() if isinstance(data, Mapping) else enumerate(data)
    for key, value in inner:
        name = f"{path}{key}"
        if isinstance(value, Mapping) or (isinstance(value, list) and value):
            yield from values(value, f"{name}.")
        elif value is not None:  # null stands for unset
            yield name, value
