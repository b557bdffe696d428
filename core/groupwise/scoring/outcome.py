"""Outcome: the checked values of one reward for a batch; a failure names the sample."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from groupwise.errors import message_of
from groupwise.rewards import Reward, RewardError, SampleErrors, StepRewards
from groupwise.rollouts import Rollouts
from groupwise.scoring.call import Call, Failure, listed

STEPS = "steps"
"""The metric of a process reward: the mean number of steps that it judges per completion."""


class Outcome:
    """One reward's values for one batch.

    values: NaN where the reward does not apply or failed; steps: by row, rewards of steps; errors:
    by row, why the reward failed on it, a phrase to follow the reward's name. Rows where it
    returned NaN are among them, whatever `on_error` is: NaN says that there is no value to give.
    """

    def __init__(self, reward: Reward, call: Call, rollouts: Rollouts) -> None:
        self.reward, self.call, self.rollouts = reward, call, rollouts
        self.values: list[float] = [math.nan] * len(rollouts)
        self.steps: dict[int, StepRewards] = {}
        self.errors: dict[int, str] = {}

    def take(self, answer: Callable[[], Any]) -> None:
        """Wait for the reward's values and check them; RewardError for a failure not skipped."""
        try:
            self._accept(answer())
        except SampleErrors as failure:
            self._accept(listed(failure.values), failure.errors, failure)
        except Failure as failure:
            self._fail_all(failure.reason, failure.__cause__, is_final=failure.is_final)

    @property
    def metrics(self) -> dict[str, tuple[float, int]]:
        """What the reward logged, as REWARD/name: for all completions the mean of what it logged
        under that name; the sum over them, and their number.

        A process reward always has the metric `steps`: the mean number of steps per completion.
        """
        logged = self.call.metrics
        if self.steps and STEPS not in logged:
            judged = sum(value is not None for row in self.steps.values() for value in row)
            logged = {**logged, STEPS: [judged / len(self.rollouts)]}
        size = len(self.rollouts)
        return {
            f"{self.reward.name}/{name}": (size * sum(values) / len(values), size)
            for name, values in logged.items()
        }

    def _accept(
        self,
        values: Any,
        failed: Mapping[int, str] | None = None,
        cause: BaseException | None = None,
    ) -> None:
        size = len(self.rollouts)
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            self._fail_all(f"returned {type(values).__name__} instead of a list of {size} numbers")
            return
        if len(values) != size:
            self._fail_all(f"returned {len(values)} values for {size} completions")
            return
        steps = any(map(_judges_steps, values))
        wrong = [self._wrong(row, value, steps) for row, value in enumerate(values)]
        errors = {row: problem for row, problem in enumerate(wrong) if problem}
        errors |= {row: message_of(reason) for row, reason in (failed or {}).items()}
        if not errors.keys() <= set(range(size)):
            self._fail_all(f"named sample {max(errors)} among those that failed, of {size}")
        elif errors:
            self._fail(values, errors, cause)
        else:
            self._keep(values)

    def _keep(self, values: Sequence[Any], errors: Mapping[int, str] | None = None) -> None:
        """Keep the values of all rows but those in `errors` and those with NaN."""
        errors = errors or {}
        undefined = {
            row: "returned NaN"
            for row, value in enumerate(values)
            if row not in errors and any(map(_is_nan, _parts(value)))
        }
        self.errors = {**errors, **undefined}
        valid = [None if row in self.errors else value for row, value in enumerate(values)]
        self.steps = {row: v for row, v in enumerate(valid) if v is not None and _judges_steps(v)}
        self.values = [_number(value) for value in valid]

    def _wrong(self, row: int, value: Any, steps: bool) -> str | None:
        """Why a value is invalid for this completion, or None; steps: others have step rewards."""
        if not _judges_steps(value):
            mixed = steps and value is not None and not _problem(value) and not _is_nan(value)
            return (
                f"returned {excerpt(value)} beside lists of step rewards"
                if mixed
                else _problem(value)
            )
        count = int(self.rollouts.lengths[row])
        if len(value) != count:
            return f"returned {len(value)} step rewards for {count} decisions"
        return next(filter(None, map(_problem, value)), None)

    def _fail_all(
        self, reason: str, cause: BaseException | None = None, *, is_final: bool = False
    ) -> None:
        """Mark all samples failed; the message names the one that the reward was reading."""
        size, at = len(self.rollouts), self.call.reading or 0
        order = [at, *(row for row in range(size) if row != at)]
        self._fail([None] * size, dict.fromkeys(order, reason), cause, is_final=is_final)

    def _fail(
        self,
        values: Sequence[Any],
        errors: Mapping[int, str],
        cause: BaseException | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        row, reason = next(iter(errors.items()))
        if is_final or self.reward.on_error == "stop":
            raise RewardError(
                f"reward {self.reward.name!r} {reason}\n"
                f"  at sample {row} of {len(self.rollouts)}"
                f"{f' ({len(errors)} samples failed)' if len(errors) > 1 else ''}\n"
                f"  prompt:     {excerpt(self.rollouts.prompts[row].get('prompt'))}\n"
                f"  completion: {excerpt(self.rollouts.completions[row])}\n"
                f"  {_IN_A_WORKER if is_final else _SKIPPED}"
            ) from cause
        self._keep(values, errors)


_SKIPPED = "set `on_error: skip` on this reward to leave out such samples and count them"
_IN_A_WORKER = (
    "set `isolate: true` on this reward, so that it is called in a process of its own, which can "
    "be killed: with `on_error: skip` the run then goes on"
)
_LARGEST = torch.finfo(torch.float32).max
"""The largest reward: it is weighted, and trained on, in float32, and squares of it are summed in
float64."""


def _judges_steps(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _parts(value: Any) -> Sequence[Any]:
    return value if _judges_steps(value) else [value]


def _is_nan(value: Any) -> bool:
    return value is not None and math.isnan(float(value))


def _number(value: Any) -> float:
    """A reward, or the sum of a completion's step rewards; NaN if there is none."""
    numbers = [float(part) for part in _parts(value) if part is not None]
    return math.fsum(numbers) if numbers else math.nan


def _problem(value: Any) -> str | None:
    """Why a value is no valid reward, or None."""
    if value is None:
        return None
    try:
        number = None if isinstance(value, str) else float(value)
    except OverflowError:
        return "returned an integer that is too large"
    except Exception:  # also of a class of the reward's own
        number = None
    if number is None:
        return f"returned {excerpt(value)}, which is not a number"
    if math.isinf(number):
        return f"returned {number}"
    if abs(number) > _LARGEST:
        return f"returned {number:g}, which is beyond {_LARGEST:.1e}, the largest float32"
    return None


def excerpt(value: Any, length: int = 200) -> str:
    """A value in an error message, cut if it is long."""
    try:
        text = repr(value)
    except Exception:  # of a class of the reward's own
        text = object.__repr__(value)
    return text if len(text) <= length else f"{text[:length]}..."
