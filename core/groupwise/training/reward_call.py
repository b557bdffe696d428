"""Call: one reward on one batch, within its deadline; its outcome checked, its failures named."""

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import torch

from groupwise.rewards import Reward, RewardError, RunState, SampleErrors, StepRewards
from groupwise.rollouts import Rollouts

OWN_METRICS = ("time/", "reward_time/", "rewards/", "evaluation/", "alarm/")
"""What the names of a run's own metrics begin with, those that have a kind."""


class _Traced(list[Any]):
    """The list of completions a reward gets; remembers how far it was read."""

    reading: int | None = None

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            self.reading = index
            yield super().__getitem__(index)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            self.reading = index % max(1, len(self))
        return super().__getitem__(index)


class Call:
    """One reward on one batch: its arguments, its outcome, its failures."""

    def __init__(
        self, reward: Reward, rollouts: Rollouts, columns: Mapping[str, list[Any]], state: RunState
    ) -> None:
        self.reward, self.rollouts = reward, rollouts
        self.completions = _Traced(rollouts.completions)
        self.extra: dict[str, Sequence[Any]] = {}
        self.metrics: dict[str, float] = {}
        self.failed = torch.zeros(len(rollouts), dtype=torch.bool)
        self.values: list[float] = [math.nan] * len(rollouts)
        self.steps: dict[int, StepRewards] = {}
        self.seconds, self._started = 0.0, time.monotonic()
        offered = {
            "prompts": [row.get("prompt") for row in rollouts.prompts],
            "completions": self.completions,
            "truncated": rollouts.truncated.tolist(),
            **{name: list(column) for name, column in rollouts.facts.items()},
            # Copies: rewards run at once, and one may sort or empty its lists.
            **{name: list(column) for name, column in columns.items()},
            "trainer_state": state,
            "log_extra": self.extra.__setitem__,
            "log_metric": self._log_metric,
        }
        named, _, takes_all = reward.parameters
        self.arguments = {k: v for k, v in offered.items() if takes_all or k in named}

    def _log_metric(self, name: str, value: Any) -> None:
        if name == "step" or name.startswith(OWN_METRICS):
            raise ValueError(f"log_metric: {name!r} is a name of the run's own")
        try:
            self.metrics[name] = float(value)  # of a tensor too, and nothing that JSON cannot hold
        except (TypeError, ValueError) as error:
            raise TypeError(f"log_metric: {name!r} is {value!r}, expected a number") from error

    def start(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> "Future[Any]":
        self._started = time.monotonic()
        function = self.reward.function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        ):
            return asyncio.run_coroutine_threadsafe(self._await(), loop())
        future: Future[Any] = Future()
        # A daemon, not an executor's thread: one that hangs must not keep the program from ending.
        threading.Thread(
            target=self._run, args=(future,), daemon=True, name=self.reward.name
        ).start()
        return future

    async def _await(self) -> Any:
        result = await self.reward.function(**self.arguments)  # type: ignore[misc]
        self.seconds = time.monotonic() - self._started
        return result

    def _run(self, future: "Future[Any]") -> None:
        # Running, it cannot be cancelled: an answer after the deadline is then simply unread.
        future.set_running_or_notify_cancel()
        try:
            with torch.no_grad():
                result = self.reward.function(**self.arguments)
            self.seconds = time.monotonic() - self._started
            future.set_result(result)
        except BaseException as error:
            future.set_exception(error)

    def finish(self, future: "Future[Any]") -> None:
        """Wait for the result until the deadline and check it."""
        left = self._started + self.reward.deadline - time.monotonic()
        try:
            self._accept(future.result(timeout=max(0.0, left)))
        except FutureTimeout as error:
            if future.done():  # the reward's own TimeoutError, not ours
                self._fail_all(f"raised {type(error).__name__}: {error}", error)
                return
            future.cancel()
            self.seconds = self.reward.deadline
            self._fail_all(f"did not answer within {self.reward.deadline:g} s", error)
        except SampleErrors as failure:
            self._accept(failure.values, failure.errors, failure)
        except RewardError:
            raise
        except (Exception, SystemExit) as error:  # a reward must not end the program unheard
            self._fail_all(f"raised {type(error).__name__}: {error}", error)

    def _accept(
        self,
        values: Any,
        failed: Mapping[int, str] | None = None,
        cause: BaseException | None = None,
    ) -> None:
        size = len(self.rollouts)
        if hasattr(values, "tolist"):  # a tensor or an array
            values = values.tolist()
        if not isinstance(values, Sequence) or isinstance(values, str):
            self._fail_all(f"returned {type(values).__name__} instead of a list of {size} numbers")
            return
        if len(values) != size:
            self._fail_all(f"returned {len(values)} values for {size} completions")
            return
        steps = any(map(_judges_steps, values))
        wrong = [self._wrong(row, value, steps) for row, value in enumerate(values)]
        errors = {row: problem for row, problem in enumerate(wrong) if problem}
        errors |= failed or {}
        if not errors.keys() <= set(range(size)):
            self._fail_all(f"named sample {max(errors)} among those that failed, of {size}")
        elif errors:
            self._fail(
                [None if row in errors else v for row, v in enumerate(values)], errors, cause
            )
        else:
            self._keep(values)

    def _keep(self, values: Sequence[Any]) -> None:
        self.steps = {row: list(value) for row, value in enumerate(values) if _judges_steps(value)}
        self.values = [_number(value) for value in values]

    def _wrong(self, row: int, value: Any, steps: bool) -> str | None:
        """Why a value is no reward of this completion, or None; steps: others have step rewards."""
        if not _judges_steps(value):
            mixed = steps and value is not None and not _problem(value)
            return f"returned {value!r} beside lists of step rewards" if mixed else _problem(value)
        count = int(self.rollouts.lengths[row])
        if len(value) != count:
            return f"returned {len(value)} step rewards for {count} decisions"
        return next(filter(None, map(_problem, value)), None)

    def _fail_all(self, reason: str, cause: BaseException | None = None) -> None:
        """The whole call failed; the sample it was reading is named, all of them are lost."""
        size, at = len(self.rollouts), self.completions.reading or 0
        order = [at, *(row for row in range(size) if row != at)]
        self._fail([None] * size, dict.fromkeys(order, reason), cause)

    def _fail(
        self,
        values: Sequence[float | None],
        errors: Mapping[int, str],
        cause: BaseException | None = None,
    ) -> None:
        if self.reward.on_error == "stop":
            row, reason = next(iter(errors.items()))
            raise RewardError(
                f"reward {self.reward.name!r} {reason}\n"
                f"  at sample {row} of {len(self.rollouts)}"
                f"{f' ({len(errors)} samples failed)' if len(errors) > 1 else ''}\n"
                f"  prompt:     {_excerpt(self.rollouts.prompts[row].get('prompt'))}\n"
                f"  completion: {_excerpt(self.rollouts.completions[row])}\n"
                f"  set `on_error: skip` on this reward to drop such samples and count them"
            ) from cause
        self._keep(values)
        self.failed[list(errors)] = True


def _judges_steps(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _number(value: Any) -> float:
    """A reward, or the sum of a completion's step rewards; NaN where there is none."""
    given = [one for one in (value if _judges_steps(value) else [value]) if one is not None]
    return math.fsum(map(float, given)) if given else math.nan


def _problem(value: Any) -> str | None:
    """Why a value is no reward, or None."""
    if value is None:
        return None
    if isinstance(value, str):
        return f"returned {value!r}, which is not a number"
    try:
        number = float(value)
    except (TypeError, ValueError):
        return f"returned {value!r}, which is not a number"
    return None if math.isfinite(number) else f"returned {number}"


def _excerpt(value: Any, length: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]}..."
