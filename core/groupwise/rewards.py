"""Rewards: TRL's call convention, and scoring a batch concurrently, within limits.

A reward is any callable `f(prompts, completions, **columns) -> list[float | None]`, sync or async.
It receives whole groups, in order, and the columns of the dataset with as many values as there are
completions; beside them `completion_ids`, `truncated` and whatever else the policy states, and
TRL's `trainer_state`, `log_extra` and `log_metric` where its signature asks for them. `None` means
"does not apply to this completion".
"""

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from groupwise.errors import UserError
from groupwise.rollouts import Rollouts

RewardFunction = Callable[..., "Sequence[float | None] | Awaitable[Sequence[float | None]]"]
OWN_ARGUMENTS = ("prompts", "completions", "trainer_state", "log_extra", "log_metric")


class SampleErrors(Exception):
    """Raised by a reward that failed on some samples and scored the others.

    values: a reward for each sample, None at the failed ones; errors: sample index -> reason.
    """

    def __init__(self, values: Sequence[float | None], errors: Mapping[int, str]) -> None:
        super().__init__(f"{len(errors)} of {len(values)} samples failed")
        self.values, self.errors = values, errors


class RewardError(UserError):
    """A reward that failed and was not configured to be skipped."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What rewards get as `trainer_state`; the names are transformers'."""

    global_step: int = 0
    max_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A named, weighted reward function with its limits.

    deadline: seconds a call on a whole batch may take.
    on_error: "stop" the run, or "skip": drop the failed samples from learning and count them.
    bound: options already bound to the function's keywords; no column may have their names.
    """

    name: str
    function: RewardFunction
    weight: float = 1.0
    deadline: float = 120.0
    on_error: Literal["stop", "skip"] = "stop"
    bound: frozenset[str] = frozenset()

    @cached_property
    def parameters(self) -> tuple[frozenset[str], frozenset[str], bool]:
        """Names it takes, names it must get, and whether it takes any (`**columns`)."""
        parameters = inspect.signature(self.function).parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        required = frozenset(p.name for p in named if p.default is p.empty)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return frozenset(p.name for p in named), required, takes_all

    def check_columns(self, columns: Mapping[str, Any], facts: Sequence[str] = ()) -> None:
        """Raise UserError when a column collides with an argument, or a needed one is missing."""
        reserved = {*OWN_ARGUMENTS, *facts, *self.bound}
        for column in columns:
            if column in reserved:
                raise UserError(
                    f"reward {self.name!r}: the dataset's column {column!r} collides with the "
                    f"argument of that name; rename the column"
                )
        missing = self.parameters[1] - reserved - set(columns)
        if missing:
            raise UserError(
                f"reward {self.name!r} needs the column {sorted(missing)[0]!r}; "
                f"the dataset has {', '.join(sorted(columns)) or 'none'}"
            )


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the rewards said of B rollouts.

    values: [B, R] float64, NaN where a reward does not apply or failed.
    failed: [B] bool, where a reward failed and was skipped.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    values: Tensor
    failed: Tensor
    seconds: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def total(self) -> Tensor:
        """[B] float64: the weighted sum of the rewards that apply.

        NaN where none applies or one failed: a sum with a part missing is not a smaller reward.
        """
        weights = torch.tensor(self.weights, dtype=self.values.dtype)
        total = (self.values * weights).nansum(dim=1)
        nothing = self.values.isnan().all(dim=1) | self.failed
        return total.masked_fill(nothing, math.nan)

    def column(self, name: str) -> Tensor:
        """[B]: one reward's values."""
        return self.values[:, self.names.index(name)]

    def select(self, rows: Tensor) -> "Scores":
        """The scores of `rows` (indices or bool); times, extras and metrics stay behind."""
        return Scores(
            names=self.names, weights=self.weights, values=self.values[rows], failed=self.failed[rows]
        )

    @staticmethod
    def concat(parts: Sequence["Scores"]) -> "Scores":
        """One batch of all parts; seconds add up, metrics of the last part win."""
        first = parts[0]
        seconds = {name: sum(p.seconds.get(name, 0.0) for p in parts) for name in first.names}
        return Scores(
            names=first.names,
            weights=first.weights,
            values=torch.cat([part.values for part in parts]),
            failed=torch.cat([part.failed for part in parts]),
            seconds=seconds,
            extra={
                name: [value for part in parts for value in part.extra[name]]
                for name in first.extra
                if all(name in part.extra for part in parts)
            },
            metrics={name: value for part in parts for name, value in part.metrics.items()},
        )


class Rewards:
    """Scores rollouts with several rewards at once, each in a thread of its own."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        if not rewards:
            raise UserError("at least one reward is needed")
        names = [reward.name for reward in rewards]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"two rewards are named {name!r}; give one of them another `label`")
        self.rewards = tuple(rewards)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward.name for reward in self.rewards)

    def __call__(self, rollouts: Rollouts, state: RunState | None = None) -> Scores:
        """Score every rollout; raises RewardError for a failure that is not to be skipped."""
        columns = _columns(rollouts)
        for reward in self.rewards:
            reward.check_columns(columns, tuple(rollouts.facts))
        calls = [_Call(reward, rollouts, columns, state or RunState()) for reward in self.rewards]
        futures = [call.start(self._event_loop) for call in calls]
        for call, future in zip(calls, futures, strict=True):
            call.finish(future)
        return Scores(
            names=self.names,
            weights=tuple(reward.weight for reward in self.rewards),
            values=torch.tensor([call.values for call in calls], dtype=torch.float64).T.contiguous(),
            failed=torch.stack([call.failed for call in calls]).any(dim=0),
            seconds={call.reward.name: call.seconds for call in calls},
            extra={name: column for call in calls for name, column in call.extra.items()},
            metrics={name: value for call in calls for name, value in call.metrics.items()},
        )

    def refresh(self, rollouts: Rollouts, scores: Scores) -> None:
        """Let rewards that learn (a reward model trained on) see what was scored."""
        for reward in self.rewards:
            learn = getattr(reward.function, "refresh", None)
            if learn is not None:
                learn(rollouts, scores)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """One loop for the life of the run, so that async clients may be kept between calls."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True, name="rewards").start()
        return self._loop


def _columns(rollouts: Rollouts) -> dict[str, list[Any]]:
    """The dataset's columns but the prompt; a value absent from a row is None."""
    names = dict.fromkeys(name for row in rollouts.prompts for name in row)
    return {
        name: [row.get(name) for row in rollouts.prompts] for name in names if name != "prompt"
    }


class _Watched(list[Any]):
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


class _Call:
    """One reward on one batch: its arguments, its outcome, its failures."""

    def __init__(
        self, reward: Reward, rollouts: Rollouts, columns: Mapping[str, list[Any]], state: RunState
    ) -> None:
        self.reward, self.rollouts = reward, rollouts
        self.completions = _Watched(rollouts.completions)
        self.extra: dict[str, Sequence[Any]] = {}
        self.metrics: dict[str, float] = {}
        self.failed = torch.zeros(len(rollouts), dtype=torch.bool)
        self.values: list[float] = [math.nan] * len(rollouts)
        self.seconds, self._started = 0.0, time.monotonic()
        offered = {
            "prompts": [row.get("prompt") for row in rollouts.prompts],
            "completions": self.completions,
            **{name: list(column) for name, column in rollouts.facts.items()},
            # Copies: rewards run at once, and one may sort or empty its lists.
            **{name: list(column) for name, column in columns.items()},
            "trainer_state": state,
            "log_extra": self.extra.__setitem__,
            "log_metric": self.metrics.__setitem__,
        }
        named, _, takes_all = reward.parameters
        self.arguments = {k: v for k, v in offered.items() if takes_all or k in named}

    def start(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> "Future[Any]":
        self._started = time.monotonic()
        function = self.reward.function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)
        ):
            return asyncio.run_coroutine_threadsafe(self._await(), loop())
        future: Future[Any] = Future()
        # A daemon, not an executor's thread: one that hangs must not keep the program from ending.
        threading.Thread(target=self._run, args=(future,), daemon=True, name=self.reward.name).start()
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
        errors = {row: problem for row, v in enumerate(values) if (problem := _problem(v))}
        errors |= failed or {}
        if not errors.keys() <= set(range(size)):
            self._fail_all(f"named sample {max(errors)} among those that failed, of {size}")
        elif errors:
            self._fail([None if row in errors else v for row, v in enumerate(values)], errors, cause)
        else:
            self.values = [math.nan if value is None else float(value) for value in values]

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
        self.values = [math.nan if value is None else float(value) for value in values]
        self.failed[list(errors)] = True


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
