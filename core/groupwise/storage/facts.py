"""Folder: what a run writes of itself, by which it is known again and gone on with."""

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise import secrets
from groupwise.config import yaml_lines
from groupwise.config.load import LoadedConfig, dump, load_config, sections
from groupwise.config.objects import Objects
from groupwise.config.sections import RunConfig
from groupwise.errors import UserError
from groupwise.storage.disk import read_record, reason, write
from groupwise.version import __version__

CONFIG = "config.yaml"
FACTS = "run.json"
"""What a run writes of itself beside its configuration; the sign that a folder is a run's."""
KEPT = ("seed", "prompts.held_out", "prompts.key")
"""Keys that a resumed run keeps: they name every sample, and what is held out."""
_OF_LEARNER = re.compile(r"^(pool|chain)\.\d+\.")
STATED = ("policy", "prompts", "rewards", "evaluation.source")
"""Sections of which a resumed run changes only what its own command line changes."""
MOST = 10
"""Changes that are told one by one."""


def read_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """A configuration file; one that lies in a run's folder as that run had it.

    Its paths are then relative to where they were when the run began, and its folder is the run's.
    """
    if path.name != CONFIG or not (path.parent / FACTS).exists():
        return load_config(path, overrides)
    facts = _facts(path.parent)
    folder = Path(facts["config_folder"])
    if not folder.is_dir():
        raise UserError(
            f"{path.parent}: the folder that the run's paths are relative to, {folder}, is gone; "
            f"if the project was moved, go on by `groupwise train CONFIG --resume "
            f"output={path.parent}` with its configuration file"
        )
    loaded = load_config(path, overrides, folder=folder)
    config = loaded.config
    if ("output",) not in loaded.origin.overridden:
        config = config.model_copy(update={"output": path.parent})
    return replace(loaded, config=config, begun_in=Path(facts["begun_in"]))


def _facts(folder: Path) -> dict[str, Any]:
    """What run.json says. Raises UserError where it is damaged; {} where there is none."""
    path = folder / FACTS
    if not path.exists():
        return {}
    try:
        facts = read_record(path)
    except ValueError as error:
        raise UserError(str(error)) from error
    if not isinstance(facts.get("config_folder"), str):
        raise UserError(f"{path} is damaged: it has no config_folder")
    return {"begun_in": facts["config_folder"], **facts}


def run_config(run: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """The configuration of the run in a folder. Raises UserError where there is none."""
    for name in (CONFIG, FACTS):
        if not (run / name).exists():
            raise UserError(f"{run} is not the folder of a run: it has no {name}")
    return read_config(run / CONFIG, overrides)


def write_facts(folder: Path, loaded: LoadedConfig, objects: Objects, *, run: str) -> None:
    """Write run.json: where the run's paths lie, and what of it was given in Python.

    run: what tells this run from any other, in its checkpoints, too.
    """
    facts = {
        "groupwise": __version__,
        "run": run,
        "folder": str(folder.resolve()),
        "config_folder": str(loaded.folder.resolve()),
        "begun_in": str(loaded.begun_in or Path.cwd()),
        # Callbacks only watch: a run goes on as well without them.
        "objects": sorted(".".join(map(str, path)) for path in objects if path[0] != "callbacks"),
    }
    write(folder / FACTS, json.dumps(facts, indent=2) + "\n")


def identity(folder: Path) -> str | None:
    """What tells the run in a folder from any other; None where there is no run yet."""
    name = _facts(folder).get("run")
    return None if name is None else str(name)


def check_objects(folder: Path, objects: Objects) -> None:
    """Raise UserError where a run was given Python objects that are not there now.

    Their names alone are known, and the same names may be registered for something else.
    """
    before = _facts(folder).get("objects", [])
    missing = set(before) - {".".join(map(str, path)) for path in objects}
    if missing:
        raise UserError(
            f"{folder}: the run was given Python objects for {', '.join(sorted(missing))}: go on "
            f"with it, or evaluate it, from Python, with the same objects"
        )


def write_config(folder: Path, loaded: LoadedConfig, *, former: str | None = None) -> None:
    """Write config.yaml; what it was before is kept by the name `former`, or one with a number."""
    path = folder / CONFIG
    if former is not None and path.exists():
        shutil.copy2(path, first_free(folder / former))
    write(path, dump(loaded.config))


def first_free(path: Path) -> Path:
    """The path, with a number where there is such a file already."""
    numbered = (path.with_name(f"{path.stem}_{n}{path.suffix}") for n in range(2, 10_001))
    return next(p for p in itertools.chain([path], numbered) if not os.path.lexists(p))


def changes(folder: Path, loaded: LoadedConfig) -> list[str]:
    """What a resumed run has different from the one in the folder: "train.steps: 200 -> 300".

    Raises UserError for what must stay: the seed, which names every prompt and sample, and what is
    held out, or prompts would be evaluated that were trained on; and for other data, another model
    or other rewards that nobody asked for on this very line.
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
                f"{key}: the run was begun with {was}, and {loaded.origin.source} says {becomes}. "
                f"`groupwise resume {loaded.config.output}` goes on with what the run was begun "
                f"with; to change it, say so on the command line: {key}={becomes}"
            )
    lines = [f"{key}: {was} -> {becomes}" for key, was, becomes in different]
    more = [f"{len(lines) - MOST} other changes"] if len(lines) > MOST else []
    return [*_moved(folder, loaded), *lines[:MOST], *more]


def _sections(path: Path) -> Mapping[str, Any]:
    """A configuration as it was written. Raises UserError where it is damaged."""
    try:
        data = yaml_lines.read(path.read_text(encoding="utf-8"), str(path))[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {reason(error)}") from error
    if not isinstance(data, Mapping) or not data:
        raise UserError(
            f"{path} is damaged: it holds no sections; with that file removed, the run goes on "
            f"by the configuration at hand"
        )
    return data


def _moved(folder: Path, loaded: LoadedConfig) -> Iterator[str]:
    """Where relative paths now lead elsewhere, or the run's folder does no longer lie."""
    facts = _facts(folder)
    was, becomes = facts.get("config_folder"), str(loaded.folder.resolve())
    if was is not None and was != becomes:
        yield f"paths relative to: {was} -> {becomes}"
    elif facts.get("folder", str(folder.resolve())) != str(folder.resolve()):
        yield f"the run in another folder than {facts['folder']}; its paths are relative to {was}"


def written(config: RunConfig) -> dict[str, Any]:
    """Every value of a configuration by its dotted key, secrets masked."""
    return dict(values(sections(config)))


def kept(config: RunConfig) -> dict[str, Any]:
    """What a run keeps for good, by dotted key."""
    by_key = written(config)
    return {key: by_key.get(key) for key in KEPT}


def check_kept(former: Mapping[str, Any], config: RunConfig) -> None:
    """Raise UserError where a run's seed, or what is held out, would be another."""
    for key, becomes in kept(config).items():
        was = former.get(key)
        if was != becomes:
            unset = "unset"
            raise UserError(
                f"{key}: a run is resumed and evaluated with its own, "
                f"{unset if was is None else was}, not {unset if becomes is None else becomes}"
            )


def _is_in(key: str, sections: Sequence[str]) -> bool:
    """Whether a dotted key is one of the sections, or lies in one of them, a learner's too."""
    own = _OF_LEARNER.sub("", key)
    return any(f"{name}.".startswith(f"{each}.") for name in {key, own} for each in sections)


def values(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no section, by its dotted key."""
    inner = data.items() if isinstance(data, Mapping) else enumerate(data)
    for key, value in inner:
        name = f"{path}{key}"
        if isinstance(value, Mapping) or (isinstance(value, list) and value):
            yield from values(value, f"{name}.")
        elif value is not None:  # which is how what is unset is written
            yield name, value
