"""Prompts made without end by reasoning-gym's procedural tasks."""

import hashlib
import operator
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from groupwise.prompts.wording import Wording
from groupwise_verifiable.puzzles.tasks import check_task

COLUMNS = ("question", "answer", "metadata")
_PATIENCE = 5.0  # seconds


class ReasoningGym:
    """The rows of one reasoning-gym task: `prompt`, `question`, `answer` and `metadata`.

    The prompt is the question, unless a template makes it of the question and other text.
    Rows are made when they are asked for, and row i of a seed is always the same. The reward
    `reasoning_gym` scores their completions with the task's own verifier. Rows of the task
    `composite` name in their metadata the task that each is of.

    key: the column that says what a row asks; rows that ask the same are held out together.
    """

    key = "question"

    class Config(Wording):
        """Settings of the prompt source `reasoning_gym`."""

        task: str = Field(description="The task's name in reasoning-gym, such as chain_sum.")
        size: int = Field(default=1_000_000, ge=1, description="How many rows there are.")
        seed: int = Field(default=0, ge=0, description="Another seed gives other rows.")
        options: dict[str, Any] = Field(default={}, description="The task's own settings.")

    def __init__(self, config: Config) -> None:
        """Checks the task and its options; makes no row yet."""
        config.check(COLUMNS)
        self.config = config
        self._rows = _dataset(config)

    def __len__(self) -> int:
        """Returns how many rows there are."""
        return self.config.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns row `index`, counted from the end when negative."""
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        row = self._rows[number]
        columns = {name: row[name] for name in COLUMNS} | {"question": str(row["question"])}
        return {"prompt": self.config.worded(columns, columns["question"]), **columns}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rows in order."""
        return (self[index] for index in range(len(self)))


class _Part(BaseModel):
    """A task of a `composite`: how often it is drawn, in proportion, and its own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    config: dict[str, Any] = {}


_PARTS = TypeAdapter(Annotated[list[_Part], Field(min_length=1)])


def spread(seed: int, part: str = "") -> int:
    """Returns a seed below 2**31, far from those that other seeds, or other parts, give.

    reasoning-gym draws row i from `seed + i`: with seeds 0 and 1 all rows but one would be shared.
    Some of its tasks take seeds below 2**32 only, rows included, so two seeds of a million rows
    still overlap with a chance of one in a thousand.
    """
    digest = hashlib.sha256(f"groupwise reasoning_gym {seed}{part and ' '}{part}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _dataset(config: ReasoningGym.Config) -> Any:  # reasoning-gym has no types
    task = check_task(config.task)
    import reasoning_gym  # an extra, and slow to import

    _check_reserved(task, config.options, "`options`")
    options = _composite(config) if task == "composite" else config.options
    try:
        with _patience(config):
            return reasoning_gym.create_dataset(
                task, size=config.size, seed=spread(config.seed), **options
            )
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError) as error:
        # Tasks check their settings by assertions; anything they raise here is about a setting.
        raise ValueError(
            f"task {task!r} refuses the options {config.options} for {config.size} rows (`size`): "
            f"{error!r}"
        ) from error


def _composite(config: ReasoningGym.Config) -> dict[str, Any]:
    """The options of `composite`, `datasets` as reasoning-gym takes them, each with a seed."""
    from reasoning_gym.composite import DatasetSpec  # an extra, and slow to import

    try:
        parts = _PARTS.validate_python(config.options.get("datasets"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, ("datasets", *first["loc"])))
        raise ValueError(
            "task 'composite' takes `options: {datasets: [{name, weight, config}, ...]}`; "
            f"{place}: {first['msg']}, found {first['input']!r}"
        ) from error
    specs = []
    for number, part in enumerate(parts):
        if check_task(part.name) == "composite":
            raise ValueError("task 'composite': `datasets` cannot hold another composite")
        _check_reserved(part.name, part.config, f"`datasets.{number}.config`")
        seeded = {**part.config, "seed": spread(config.seed, part.name)}
        specs.append(DatasetSpec(name=part.name, weight=part.weight, config=seeded))
    return {**config.options, "datasets": specs}


def _check_reserved(task: str, options: Mapping[str, Any], place: str) -> None:
    reserved = {"size", "seed"} & options.keys()
    if reserved:
        raise ValueError(
            f"task {task!r}: {', '.join(sorted(reserved))} belong beside `options`, not in {place}"
        )


@contextmanager
def _patience(config: ReasoningGym.Config) -> Iterator[None]:
    """Says on stderr what takes so long where a task makes all of its rows at once."""
    advice = (
        f"reasoning_gym: the task {config.task!r} makes all of its {config.size:,} rows at once, "
        "which is not done yet; with a lower `size` it is done sooner\n"
    )
    timer = threading.Timer(_PATIENCE, lambda: sys.stderr.write(advice))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
