"""Load a run's configuration: from a YAML file, or a mapping, to validated objects.

Every mistake is a `UserError` that names the line, the key and what was expected there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from groupwise.config import yaml_lines
from groupwise.config.mistakes import Origin, described, explain
from groupwise.config.objects import Objects, set_aside
from groupwise.config.overrides import apply, from_python, parse
from groupwise.config.sections import RunConfig
from groupwise.config.yaml_lines import Lines
from groupwise.kit import secrets
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.section import KeyPath

LARGEST = 10_000_000
"""Bytes of a configuration file."""


@dataclass(frozen=True, kw_only=True)
class LoadedConfig:
    """A validated configuration, and where its values came from.

    folder: the base of relative paths in plugins' options.
    objects: Python objects in place of plugins' names, by the path of their section.
    begun_in: for a resumed run, the working directory in which it was first started.
    """

    config: RunConfig
    folder: Path
    origin: Origin
    objects: Objects = field(default_factory=dict)
    begun_in: Path | None = None

    @property
    def stated(self) -> Sequence[str]:
        """Dotted keys that the command line, or the keywords of a call, set over the file."""
        return [".".join(map(str, path)) for path in self.origin.overridden]


def load_config(
    config: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    folder: Path | None = None,
) -> LoadedConfig:
    """Read and check a YAML file, or a mapping with the same keys; no plugin is imported.

    In a mapping, Python objects may stand in place of plugins' names.

    overrides: strings `dotted.key=value` as on the command line, or a mapping of dotted keys and of
    sections, whose keys replace those of the file; a section that names another plugin replaces the
    whole section. folder: the base of relative paths; if unset that of the file, or the current
    folder.

    Raises UserError with a line for each mistake.
    """
    if not isinstance(config, Mapping):
        return load_text(_text(Path(config)), Path(config), overrides, folder=folder)
    return _loaded(config, overrides, folder or Path.cwd(), "configuration")


def load_text(
    text: str,
    path: Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    folder: Path | None = None,
) -> LoadedConfig:
    """Like `load_config`, from the text of a file, which may not have been written yet."""
    data, lines = yaml_lines.read(text, str(path))
    if data is None:
        raise UserError(f"{path}: the file is empty, expected policy, prompts and rewards")
    if not isinstance(data, Mapping):
        raise UserError(f"{path}, line 1: expected a section of keys, found {described(data)}")
    if data.get("output") is None:
        data = {**data, "output": f"runs/{path.stem}"}
    return _loaded(data, overrides, folder or path.parent, str(path), lines)


def dump(config: RunConfig) -> str:
    """The configuration as YAML, defaults included; `load_config` reads it back equal, except for
    secrets, which are masked.
    """
    return yaml_lines.write(sections(config))


def sections(config: RunConfig) -> dict[str, Any]:
    """What the YAML of a configuration holds, without writing and reading it."""
    # With several policies each has its own; a file that sets them for all is refused.
    several = {"algorithm", "sampler", "teacher"} if config.players else None
    data: dict[str, Any] = yaml_lines.plain(secrets.masked(config.model_dump(exclude=several)))
    if config.train.data_epochs is not None:
        del data["train"]["steps"]  # counted again when it is read
    return data


def idle_processes(config: RunConfig, processes: int) -> str | None:
    """A note if there are more processes than groups in an update; else None."""
    groups = config.train.groups_per_step // config.train.updates_per_rollout
    if groups >= processes:
        return None
    return (
        f"{processes} processes share {groups} group{'' if groups == 1 else 's'} an update, so "
        f"{processes - groups} of them sample nothing: set train.groups_per_step to at least "
        f"{processes * config.train.updates_per_rollout}, or lower train.updates_per_rollout"
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UserError(
                f"{path}: more than {LARGEST // 10**6} MB, which is too much for a configuration; "
                f"put rows into a file of their own (prompts: dataset)"
            )
        # utf-8-sig drops the byte order mark that Windows editors write.
        return content.decode("utf-8-sig")
    except FileNotFoundError as error:
        near = did_you_mean(path.name, [each.name for each in path.parent.glob("*.y*ml")])
        raise UserError(f"{path}: no such file{near}") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: expected a YAML file, found a folder") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text, byte {error.start} is not") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _loaded(
    data: Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any],
    folder: Path,
    source: str,
    lines: Lines | None = None,
) -> LoadedConfig:
    """lines: of a file; None of a mapping, in which objects may stand in place of names."""
    objects: dict[KeyPath, Any] = {}
    try:
        data = data if lines else set_aside((), data, objects)
        if isinstance(overrides, Mapping):
            edits = from_python(overrides, data, objects)
        else:
            edits = [parse(text) for text in overrides]
        data, overridden = apply(data, edits, lines or Lines())
        origin = Origin(source=source, lines=lines or Lines(), overridden=overridden)
        # `train:` with every key commented out is None, and means the defaults.
        data = {key: value for key, value in data.items() if value is not None}
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        raise explain(error, RunConfig, data, origin) from None  # pydantic's shows all values
    except RecursionError as error:
        raise UserError(f"{source}: nested too deeply, or inside itself") from error
    return LoadedConfig(config=config, folder=folder, origin=origin, objects=objects)
