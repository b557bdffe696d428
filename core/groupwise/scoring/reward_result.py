"""RewardResult: the checked values of one reward for a batch; a failure names the sample."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from groupwise import attachments
from groupwise.kit import progress
from groupwise.kit.errors import message_of
from groupwise.rewards import Reward, RewardError, SampleErrors, StepRewards
from groupwise.rollouts import Rollouts
from groupwise.scoring.reward_call import Failure, RewardCall, listed

STEPS = "steps"
"""The metric of a process reward: the mean number of steps that it judges per completion."""


class RewardResult:
    """One reward's values for one batch.

    answer: returns them: makes the call, or waits for it; None if there is nothing to score.
    is_here: whether it makes the call, in this thread.
    rows: of its rollouts in the whole batch; what follows counts these rollouts alone.
    values: NaN where the reward does not apply or failed; steps: by row, rewards of steps; errors:
    by row, why the reward failed on it, a phrase to follow the reward's name. Rows where it
    returned NaN are among them, whatever `on_error` is: NaN says that there is no value to give.
    """

    def __init__(
        self,
        reward: Reward,
        call: RewardCall,
        rollouts: Rollouts,
        answer: Callable[[], Any] | None,
        *,
        is_here: bool,
        rows: Sequence[int],
    ) -> None:
        self.reward, self.call, self.rollouts, self.rows = reward, call, rollouts, rows
        self._answer, self.is_here = answer, is_here
        self.values: list[float] = [math.nan] * len(rollouts)
        self.steps: dict[int, StepRewards] = {}
        self.errors: dict[int, str] = {}

    def take(self) -> None:
        """Take the reward's values, once, and check them; RewardError for a failure not skipped."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        size, failure = len(self.rollouts), None
        try:
            with progress.doing(f"reward {self.reward.name!r}"):
                values, errors, cause = self._checked(answer)
        except Failure as whole:  # of all samples; the message names the one that was being read
            values, at = [None] * size, self.call.reading or 0
            errors = dict.fromkeys([at, *range(size)], whole.reason)
            cause, failure = whole.__cause__, whole
        stops = {row: why for row, why in errors.items() if not _is_plain_nan(values[row])}
        is_final = failure is not None and failure.is_final
        if stops and (is_final or self.reward.on_error == "stop"):
            is_own = isinstance(cause, SampleErrors)  # the reward's own word on some samples
            raise RewardError(self._message(stops, failure, is_own=is_own)) from cause
        self._keep(values, errors)

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

    def _checked(
        self, answer: Callable[[], Any]
    ) -> tuple[Sequence[Any], dict[int, str], BaseException | None]:
        """The values; by row, why the reward failed on it; and the exception by which it said so.

        Raises Failure if there are no values of this batch.
        """
        failed: Mapping[int, str] = {}
        cause: BaseException | None = None
        try:
            values = answer()
        except SampleErrors as failure:
            values, failed, cause = listed(failure.values), failure.errors, failure
        size = len(self.rollouts)
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            kind = type(values).__name__
            problem = f"returned {kind} instead of a list of {size} numbers"
            raise Failure(problem, is_bug=True, of_batch=True)
        if len(values) != size:
            returned, due = _counted(len(values), "value"), _counted(size, "completion")
            problem = f"returned {returned} for {due}"
            raise Failure(problem, is_bug=True, of_batch=True)
        steps = any(map(_judges_steps, values))
        wrong = [self._wrong(row, value, steps) for row, value in enumerate(values)]
        errors = {row: problem for row, problem in enumerate(wrong) if problem}
        errors |= {row: message_of(reason) for row, reason in failed.items()}
        if not errors.keys() <= set(range(size)):
            problem = f"named sample {max(errors)} among those that failed, of {size}"
            raise Failure(problem, is_bug=True)
        return values, errors, cause

    def _keep(self, values: Sequence[Any], errors: Mapping[int, str]) -> None:
        """Keep the values of all rows but those in `errors` and those with NaN."""
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

    def _message(self, errors: Mapping[int, str], failure: Failure | None, *, is_own: bool) -> str:
        row, reason = next(iter(errors.items()))
        if failure is not None and failure.of_batch:
            return f"reward {self.reward.name!r} {reason}\n  {_LISTED}"
        place, advice = "", _SKIPPED if is_own else _RETURNED
        if failure is not None:
            place = f"  at {failure.place}\n" if failure.place else ""
            advice = _FIXED if failure.is_bug else _SKIPPED
            advice = _IN_A_WORKER if failure.is_final else advice
        return (
            f"reward {self.reward.name!r} {reason}\n{place}"
            f"  at sample {row} of {len(self.rollouts)}"
            f"{f' ({len(errors)} samples failed)' if len(errors) > 1 else ''}\n"
            f"  prompt:     {excerpt(self.rollouts.prompts[row].get('prompt'))}\n"
            f"  completion: {excerpt(self.rollouts.completions[row])}\n"
            f"  {advice}"
        )


_SKIPPED = "set `on_error: skip` on this reward to leave out such samples and count them"
_RETURNED = "a reward returns a number for each completion, or None where it does not apply"
_LISTED = (
    "return a list with a number for each completion, in their order, or None where it does not "
    "apply"
)
_FIXED = (
    "correct it there; where a completion cannot be judged, return None for it, or NaN to leave it "
    "out; --traceback shows all calls"
)
_IN_A_WORKER = (
    "set `isolate: true` on this reward, so that it is called in a process of its own, which can "
    "be killed: with `on_error: skip` the run then goes on"
)
_LARGEST = torch.finfo(torch.float32).max
"""The largest reward: it is weighted, and trained on, in float32, and squares of it are summed in
float64."""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _judges_steps(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _parts(value: Any) -> Sequence[Any]:
    return value if _judges_steps(value) else [value]


def _is_plain_nan(value: Any) -> bool:
    """Whether a value, which may be anything, is one number and NaN."""
    return not _judges_steps(value) and _problem(value) is None and _is_nan(value)


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
    """A value in a message, cut if it is long; a picture is named, with its size if it has one, and
    so are the frames of a video."""
    if hasattr(value, "save"):  # all that the core knows of pictures
        what = f"{len(value)} pictures" if isinstance(value, Sequence) else "picture"
        size = getattr(value, "size", None)
        return f"[{what} of {size[0]} x {size[1]}]" if isinstance(size, tuple) else f"[{what}]"
    try:
        text = repr(attachments.readable(value))
    except Exception:  # of a class of the reward's own
        text = object.__repr__(value)
    return text if len(text) <= length else f"{text[:length]}..."
