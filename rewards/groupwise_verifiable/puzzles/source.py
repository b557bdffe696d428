"""A prompt source: reasoning-gym's procedural tasks, which generate any number of prompts."""

import hashlib
import operator
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from groupwise_messages.wording import Wording
from groupwise_verifiable.puzzles.tasks import check_task

COLUMNS = ("question", "answer", "metadata")
_PATIENCE = 5.0  # seconds
SIZE = 1_000_000
SIZES = {"acre": 10_000, "word_ladder": 500}
"""Rows of tasks that generate all of them at once, or that have no million."""


class ReasoningGym:
    """Puzzles of a reasoning-gym task, made as they are needed: `question` and `answer`.

    The prompt is the question, unless a template makes it of the question and other text.
    Rows are generated on demand; row i of a seed is always the same. The reward `reasoning_gym`
    scores their completions by the task's own verifier. With the task `composite`, each row's
    metadata names its task.

    key: the column of the question; rows with the same question are held out together.
    """

    key = "question"

    class Config(Wording):
        """Settings of the prompt source `reasoning_gym`."""

        task: str = Field(description="The task's name in reasoning-gym, such as chain_sum.")
        size: int | None = Field(
            default=None,
            ge=1,
            description="Number of rows; if unset a million, of `acre` 10,000, `word_ladder` 500.",
        )
        seed: int = Field(default=0, ge=0, description="Seed of the rows.")
        options: dict[str, Any] = Field(default={}, description="The task's own settings.")

        @property
        def rows(self) -> int:
            return SIZES.get(self.task, SIZE) if self.size is None else self.size

    def __init__(self, config: Config) -> None:
        """Checks the task and its options; generates no row yet."""
        config.check(COLUMNS)
        self.config = config
        self._rows = _dataset(config)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self.config.rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns row `index`; a negative one counts from the end."""
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        row = self._rows[number]
        columns = {name: row[name] for name in COLUMNS} | {"question": str(row["question"])}
        return {"prompt": self.config.worded(columns, columns["question"]), **columns}

    def of_text(self, text: str) -> Mapping[str, Any]:
        """Returns the row of a question that a user has typed."""
        return self.config.of_text(text)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rows in order."""
        return (self[index] for index in range(len(self)))


class _Part(BaseModel):
    """A task of a `composite`: its relative frequency and its own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    config: dict[str, Any] = {}


_PARTS = TypeAdapter(Annotated[list[_Part], Field(min_length=1)])


def spread(seed: int, part: str = "") -> int:
    """Returns a seed below 2**31 by hashing, far from those of other seeds or parts.

    reasoning-gym generates row i from `seed + i`, so seeds 0 and 1 would share all rows but one.
    Some tasks need seed + i < 2**32; hashed to 31 bits, two seeds with a million rows each still
    overlap with probability 0.001.
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
                task, size=config.rows, seed=spread(config.seed), **options
            )
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError) as error:
        # Tasks check their settings by assertions; any error here is about a setting.
        raise ValueError(
            f"task {task!r} refuses the options {config.options} for {config.rows} rows (`size`): "
            f"{error!r}"
        ) from error


def _composite(config: ReasoningGym.Config) -> dict[str, Any]:
    """The options of `composite`, with `datasets` as reasoning-gym takes them, each with a seed."""
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
    """The context that prints a note after some seconds: some tasks generate all rows at once."""
    advice = (
        f"reasoning_gym: the task {config.task!r} generates all of its {config.rows:,} rows at "
        "once and is still at it; a lower `size` takes less time\n"
    )
    timer = threading.Timer(_PATIENCE, lambda: sys.stderr.write(advice))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
