"""Load a run's configuration: from a YAML file, or a mapping, to validated objects.

Every mistake is a `UserError` that names the line, the key and what was expected there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from groupwise import secrets
from groupwise.config import yaml_lines
from groupwise.config.mistakes import Origin, described, explain
from groupwise.config.overrides import Override, apply, from_python, parse
from groupwise.config.sections import RunConfig
from groupwise.config.yaml_lines import Lines
from groupwise.errors import UserError

LARGEST = 10_000_000
"""Bytes of a configuration file."""


@dataclass(frozen=True, kw_only=True)
class LoadedConfig:
    """A validated configuration, and where its values came from.

    folder: the base of relative paths in plugins' options.
    begun_in: for a resumed run, the working directory in which it was first started.
    stated: dotted keys that the command line, or the keywords of a call, set over the file.
    """

    config: RunConfig
    folder: Path
    origin: Origin
    begun_in: Path | None = None
    stated: Sequence[str] = ()


def load_config(
    config: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    folder: Path | None = None,
) -> LoadedConfig:
    """Read and check a YAML file, or a mapping with the same keys; nothing is built or imported.

    overrides: strings `dotted.key=value` as on the command line, or a mapping from dotted keys to
    values. folder: the base of relative paths; if unset that of the file, or the current folder.

    Raises UserError with a line for each mistake.
    """
    if not isinstance(config, Mapping):
        return load_text(_text(Path(config)), Path(config), overrides, folder=folder)
    data, overridden = apply(config, _parsed(overrides), Lines())
    origin = Origin(source="configuration", overridden=overridden)
    return _validated(data, folder or Path.cwd(), origin)


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
    data, overridden = apply(data, _parsed(overrides), lines)
    origin = Origin(source=str(path), lines=lines, overridden=overridden)
    if data.get("output") is None:
        data = {**data, "output": f"runs/{path.stem}"}
    return _validated(data, folder or path.parent, origin)


def dump(config: RunConfig) -> str:
    """The configuration as YAML, defaults included; `load_config` reads it back equal, except for
    secrets, which are masked.
    """
    return yaml_lines.write(sections(config))


def sections(config: RunConfig) -> dict[str, Any]:
    """What the YAML of a configuration holds, without writing and reading it."""
    # With several policies each has its own; a file that sets them for all is refused.
    several = {"algorithm", "sampler"} if config.players else None
    data: dict[str, Any] = yaml_lines.plain(secrets.masked(config.model_dump(exclude=several)))
    return data


def idle_processes(config: RunConfig, processes: int) -> str | None:
    """A note if there are more processes than groups in an update; else None."""
    groups = config.train.groups_per_step // config.train.updates_per_rollout
    if groups >= processes:
        return None
    return (
        f"{processes} processes share {groups} group{'' if groups == 1 else 's'} an update, so "
        f"{processes - groups} of them idle: set train.groups_per_step to at least "
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
        raise UserError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: expected a YAML file, found a folder") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text, byte {error.start} is not") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _parsed(overrides: Sequence[str] | Mapping[str, Any]) -> list[Override]:
    if isinstance(overrides, Mapping):
        return [from_python(key, value) for key, value in overrides.items()]
    return [parse(text) for text in overrides]


def _validated(data: Mapping[str, Any], folder: Path, origin: Origin) -> LoadedConfig:
    # `train:` with every key commented out is None, and means the defaults.
    data = {key: value for key, value in data.items() if value is not None}
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        raise explain(error, RunConfig, data, origin) from None  # pydantic's shows all values
    except RecursionError as error:
        raise UserError(f"{origin.source}: nested too deeply, or inside itself") from error
    stated = [".".join(map(str, path)) for path in origin.overridden]
    return LoadedConfig(config=config, folder=folder, origin=origin, stated=stated)
