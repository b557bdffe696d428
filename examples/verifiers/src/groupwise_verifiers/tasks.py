"""Tasks: the tasks of a taskset of verifiers, as prompts."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.env import Env
from verifiers.v1.utils.loaders import load_environment, load_taskset, resolve_env_config

from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row


class Tasks:
    """The first tasks of a taskset; a row has a task's place in the taskset as `task`, and its own
    columns."""

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        taskset: dict[str, Any] = Field(description="verifiers' configuration of the taskset: `id`")
        count: int = Field(1000, ge=1, description="the most tasks: a taskset may have no end")

    def __init__(self, config: Config) -> None:
        taskset = load_taskset(configured({"taskset": config.taskset}).taskset)
        self.rows = [_row(task, place) for place, task in enumerate(islice(taskset, config.count))]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> Row:
        return self.rows[index]


class LoadedTasks:
    """The tasks of an environment by their places, loaded as far as they are needed."""

    def __init__(self, env: Env[Any]) -> None:
        self._rest: Iterator[Any] = iter(env.taskset)
        self._loaded: list[Any] = []

    def __getitem__(self, place: int) -> Any:
        self._loaded += islice(self._rest, max(0, place + 1 - len(self._loaded)))
        return self._loaded[place]


def configured(env: dict[str, Any]) -> EnvConfig:
    """The configuration of an environment, checked. Raises UserError."""
    try:
        return resolve_env_config(env)
    except (ValueError, ImportError, AttributeError, TypeError) as error:
        raise UserError(f"verifiers: {error}") from error


def loaded(env: dict[str, Any]) -> Env[Any]:
    """The environment of a configuration. Raises UserError."""
    config = configured(env)
    try:
        return load_environment(config)
    except (ValueError, ImportError, AttributeError, TypeError) as error:
        raise UserError(f"verifiers: {error}") from error


def _row(task: Any, place: int) -> Row:
    data = task.data.model_dump(mode="json", exclude_none=True)
    # Shown in samples; what the model reads is the environment's affair.
    prompt = data.get("prompt") or data.get("name") or f"task {place}"
    return {**data, "prompt": prompt, "task": place}
