"""Prompts made without end by reasoning-gym's procedural tasks."""

import difflib
import hashlib
import operator
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ReasoningGym:
    """The rows of one reasoning-gym task: `prompt`, `question`, `answer` and `metadata`.

    Rows are made when they are asked for, and row i of a seed is always the same. The reward
    `reasoning_gym` scores their completions with the task's own verifier.
    """

    class Config(BaseModel):
        """Settings of the prompt source `reasoning_gym`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        task: str = Field(description="The task's name in reasoning-gym, such as chain_sum.")
        size: int = Field(default=1_000_000, ge=1, description="How many rows there are.")
        seed: int = Field(default=0, ge=0, description="Another seed gives other rows.")
        options: dict[str, Any] = Field(default={}, description="The task's own settings.")
        prefix: str = Field(default="", description="Text before the question.")
        instruction: str = Field(default="", description="Text after the question.")
        chat: bool = Field(default=False, description="Prompts as messages instead of text.")
        system: str | None = Field(default=None, description="A system message, for `chat: true`.")

    def __init__(self, config: Config) -> None:
        """Checks the task and its options; makes no row yet."""
        if config.system is not None and not config.chat:
            raise ValueError("`system` needs `chat: true`: a text prompt has no messages")
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
        question = str(row["question"])
        return {
            "prompt": self._prompt(question),
            "question": question,
            "answer": row["answer"],
            "metadata": row["metadata"],
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rows in order."""
        return (self[index] for index in range(len(self)))

    def _prompt(self, question: str) -> str | list[dict[str, str]]:
        text = self.config.prefix + question + self.config.instruction
        if not self.config.chat:
            return text
        messages = [{"role": "user", "content": text}]
        if self.config.system is not None:
            messages.insert(0, {"role": "system", "content": self.config.system})
        return messages


def spread(seed: int) -> int:
    """Returns a seed below 2**31, far from those that other seeds give.

    reasoning-gym draws row i from `seed + i`: with seeds 0 and 1 all rows but one would be shared.
    Some of its tasks take seeds below 2**32 only, rows included, so two seeds of a million rows
    still overlap with a chance of one in a thousand.
    """
    digest = hashlib.sha256(f"groupwise reasoning_gym {seed}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def task_names() -> list[str]:
    """Returns the names of reasoning-gym's tasks; a ValueError says what to install."""
    if find_spec("reasoning_gym") is None:
        raise ValueError("reasoning_gym tasks need reasoning-gym: pip install 'groupwise[llm]'")
    import reasoning_gym.factory  # an extra, and slow to import

    return sorted(reasoning_gym.factory.DATASETS)


def check_task(task: object) -> str:
    """Returns the name when there is such a task; a ValueError gives the closest names."""
    names = task_names()
    if task in names:
        return str(task)
    near = difflib.get_close_matches(str(task), names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has: {', '.join(names)}"
    raise ValueError(f"reasoning-gym has no task {task!r}; {hint}")


def _dataset(config: ReasoningGym.Config) -> Any:  # reasoning-gym has no types
    task = check_task(config.task)
    import reasoning_gym  # an extra, and slow to import

    reserved = {"size", "seed"} & config.options.keys()
    if reserved:
        raise ValueError(
            f"task {task!r}: {', '.join(sorted(reserved))} belong beside `options`, not in it"
        )
    try:
        return reasoning_gym.create_dataset(
            task, size=config.size, seed=spread(config.seed), **config.options
        )
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError) as error:
        # Tasks check their settings by assertions; anything they raise here is about a setting.
        raise ValueError(
            f"task {task!r} refuses the options {config.options} for {config.size} rows: {error!r}"
        ) from error
