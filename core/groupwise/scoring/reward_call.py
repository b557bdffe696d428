"""RewardCall: the arguments of a reward for one batch, and what it logs."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import Any

import torch

from groupwise.kit.copies import copied, kept
from groupwise.kit.errors import message_of, place_of
from groupwise.rewards import Reward, RunState, SampleErrors
from groupwise.rewards.deadline import ending_in, lasting
from groupwise.rewards.reward import REFERENCES
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise.scoring.forks import ending_forks

HOOKS = ("log_extra", "log_metric")
"""TRL's logging functions among the arguments: methods of the call where it is made."""


class Failure(Exception):  # noqa: N818
    """A call of a reward failed as a whole.

    reason: a phrase to follow the reward's name; is_final: the run must end, whatever `on_error`;
    is_bug: the reward's code, or its options, must be changed; place: the line of a user's file
    that raised, if one did; of_batch: it is the answer to the batch that is wrong, no sample.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_final: bool = False,
        is_bug: bool = False,
        place: str | None = None,
        of_batch: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason, self.is_final, self.is_bug, self.place = reason, is_final, is_bug, place
        self.of_batch = of_batch

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure of a call that raised an exception; what a file or a network raises may pass,
        anything else is a bug."""
        return cls(
            f"raised {type(error).__name__}: {message_of(error)}",
            is_bug=isinstance(error, Exception) and not isinstance(error, OSError),
            place=place_of(error),
        )


class RewardCall:
    """The call of one reward on one batch; it can be pickled and made in a worker process.

    Its arguments are copies of its own (`groupwise.kit.copies`), each row's by itself: what a
    reward changes in them, another one does not see, nor do the other members of a group.
    purpose: what the rollouts were sampled for; references: for each rollout, the completions that
    a relative reward compares it with, besides those of its group; none if unset.
    extra, metrics: what the reward logged; seconds: how long it took; began: when it started, by
    the monotonic clock of the process that makes the call, None before.
    """

    def __init__(
        self,
        reward: Reward,
        rollouts: Rollouts,
        columns: Mapping[str, list[Any]],
        state: RunState,
        *,
        purpose: Purpose = "train",
        references: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        compared = [[] for _ in range(len(rollouts))] if references is None else references
        offered = {
            "prompts": [row.get("prompt") for row in rollouts.prompts],
            "completions": rollouts.completions,
            "groups": rollouts.groups.tolist(),
            "purpose": purpose,
            "truncated": rollouts.truncated.tolist(),
            "ended": rollouts.ended,
            **{n: list(column) for n, column in rollouts.facts.items() if not n.startswith("_")},
            **columns,
            "trainer_state": deepcopy(state),
            **({REFERENCES: compared} if reward.members.relative else {}),
        }
        self.arguments: dict[str, Any] = {
            name: copied(value) for name, value in offered.items() if reward.takes(name)
        }
        if "completions" in self.arguments:
            self.arguments["completions"] = _Traced(self.arguments["completions"])
        self.hooks = [hook for hook in HOOKS if reward.takes(hook)]
        self.size, self.deadline = len(rollouts), reward.deadline
        self.extra: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[float]] = {}
        self.seconds = 0.0
        self.began: float | None = None

    def run(self, function: Callable[..., Any]) -> list[Any]:
        """Call the function. Raises SampleErrors, KeyboardInterrupt, or Failure for any other
        exception of it."""
        try:
            with torch.no_grad(), self._timed(ending_in(self.deadline)):
                return listed(function(**self.arguments, **self._hooks))
        finally:
            # Images on the device are freed; `reading` is still read.
            self.arguments = {n: v for n, v in self.arguments.items() if n == "completions"}

    async def wait(
        self, function: Callable[..., Any], left: Callable[[], float] | None = None
    ) -> list[Any]:
        """Like `run`, for an async function; also raises what ends its task.

        left: seconds of its time, which may begin later; from now on if unset.
        """
        time_left = ending_in(self.deadline) if left is None else lasting(left)
        with self._timed(
            time_left, asyncio.CancelledError, GeneratorExit
        ):  # the latter: it is dropped
            return listed(await function(**self.arguments, **self._hooks))

    @contextmanager
    def _timed(
        self, time_left: AbstractContextManager[None], *passed: type[BaseException]
    ) -> Iterator[None]:
        """Measures the call; its exceptions, but for those `passed`, become Failures.

        time_left: in which `seconds_left` says its time.
        """
        passed = (SampleErrors, KeyboardInterrupt, *passed)
        self.began = time.monotonic()
        try:
            with ending_forks(), time_left:
                yield
        except passed:
            raise
        except BaseException as error:  # sys.exit in a reward must not end the run
            raise Failure.of(error) from error
        finally:
            self.seconds = time.monotonic() - self.began

    @property
    def reading(self) -> int | None:
        """The index of the completion that the reward read last; None if it iterated over none."""
        return getattr(self.arguments.get("completions"), "reading", None)

    @reading.setter
    def reading(self, row: int | None) -> None:
        if "completions" in self.arguments:
            self.arguments["completions"].reading = row

    @property
    def _hooks(self) -> dict[str, Callable[..., None]]:
        return {name: getattr(self, name) for name in self.hooks}

    def log_extra(self, name: str, values: Any) -> None:
        column = listed(values)
        count = len(column) if isinstance(column, list) else type(column).__name__
        if count != self.size:
            raise ValueError(
                f"log_extra: {name!r} needs {self.size} values, one for each completion, received "
                f"{count}"
            )
        self.extra[str(name)] = column

    def log_metric(self, name: str, value: Any) -> None:
        try:
            number = float(value)  # also of a tensor; JSON can hold it
        except (TypeError, ValueError) as error:
            raise TypeError(f"log_metric: {name!r} is {value!r}, expected a number") from error
        self.metrics.setdefault(str(name), []).append(number)


class _Traced(list[Any]):
    """The list of completions for a reward; remembers the item read last, to name it in errors."""

    reading: int | None = None

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            self.reading = index
            yield super().__getitem__(index)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            self.reading = index % max(1, len(self))
        return super().__getitem__(index)

    def __reduce__(self) -> Any:
        return _Traced, (self[:],)


def listed(values: Any) -> Any:
    """What a reward returned as a list of plain values, its lists and pictures as copies; unchanged
    if it is no series of values.

    Arrays of one number each, such as logits [B, 1], become numbers.
    """
    if hasattr(values, "tolist"):  # a tensor or an array
        is_column = getattr(values, "shape", ())[1:] == (1,)
        return (values.reshape(-1) if is_column else values).tolist()
    unordered = isinstance(values, str | bytes | Mapping | AbstractSet)
    if unordered or not isinstance(values, Iterable):
        return values
    series = list(values)
    plain = [value.tolist() if hasattr(value, "tolist") else kept(value) for value in series]
    if all(getattr(value, "shape", ()) == (1,) for value in series):
        return [number for (number,) in plain]
    return plain
