"""Rewards: TRL's call convention, and `Scores`, the rewards of a batch.

A reward is any callable `f(prompts, completions, **columns) -> list[float | None]`, sync or async.
It receives whole groups, in order, and the columns of the dataset with one value per completion. If
its signature has them, it also receives `groups` (the number of each completion's group: the same
prompt may be drawn twice), `truncated`, the policy's facts (`completion_ids`, ...) and TRL's
`trainer_state`, `log_extra` and `log_metric`. `None` means "does not apply to this completion". NaN
means that the reward failed on it: as if the completion itself had failed, it has no reward and no
gradient.

A process reward returns a list per completion instead of a number, with one entry per decision: the
reward of the step that ends there, or `None` if none ends there.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from groupwise.advantages import zero_variance, zero_variance_of_steps
from groupwise.balance import Constraint, Schedule
from groupwise.errors import UserError

StepRewards = Sequence[float | None]
RewardFunction = Callable[..., "Sequence[float | StepRewards | None] | Awaitable[Any]"]
Number = TypeVar("Number", int, float)
OWN_ARGUMENTS = (
    *("prompts", "completions", "groups", "truncated"),
    *("trainer_state", "log_extra", "log_metric"),
)


class SampleErrors(Exception):  # noqa: N818
    """Raised by a reward that failed on some samples and scored the others.

    values: a reward for each sample, None at the failed ones; errors: sample index -> reason.
    """

    def __init__(self, values: Sequence[float | None], errors: Mapping[int, str]) -> None:
        super().__init__(f"{len(errors)} of {len(values)} samples failed")
        self.values, self.errors = values, errors


class RewardError(UserError):
    """A reward failed, and its `on_error` is "stop"."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The argument `trainer_state` of rewards: the fields of transformers' `TrainerState`.

    A run sets the steps done (`global_step`), the steps in all (`max_steps`), the passes over the
    training prompts (`epoch`), and which process this is. The other fields have transformers'
    defaults, since they concern its Trainer only.
    """

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True

    num_train_epochs: int = 0
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_input_tokens_seen: int = 0
    total_flos: float = 0.0
    log_history: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A named, weighted reward function with its limits.

    weight: a number, or a schedule over the steps; unused with a constraint, whose multiplier is
        the weight.
    deadline: seconds that a call on a whole batch may take.
    on_error: "stop" the run, or "skip": learn nothing from the failed samples, and count them.
    isolate: call it in a worker process, which can be killed.
    bound: names of options bound to the function; no column may have one of these names.
    remake: builds the function again in a worker process, instead of pickling it.
    """

    name: str
    function: RewardFunction
    weight: float | Schedule = 1.0
    constraint: Constraint | None = None
    deadline: float = 120.0
    on_error: Literal["stop", "skip"] = "stop"
    isolate: bool = False
    bound: frozenset[str] = frozenset()
    remake: "Callable[[], RewardFunction] | None" = None

    @property
    def target(self) -> Any:
        """The function or object without bound options; it may have `load` or `refresh`."""
        return target_of(self.function)

    @cached_property
    def is_async(self) -> bool:
        return is_async(self.function)

    @property
    def has_state(self) -> bool:
        """Whether its state belongs in a checkpoint; a frozen `nn.Module` has none."""
        target = self.target
        saves = all(callable(getattr(target, n, None)) for n in ("state_dict", "load_state_dict"))
        return saves and (hasattr(target, "refresh") or not isinstance(target, nn.Module))

    @cached_property
    def parameters(self) -> tuple[frozenset[str], frozenset[str], bool]:
        """Names of its parameters, of those without default, and whether it has `**columns`."""
        parameters = inspect.signature(self.function).parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        required = frozenset(p.name for p in named if p.default is p.empty)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return frozenset(p.name for p in named), required, takes_all

    def check_columns(self, columns: Mapping[str, Any], facts: Sequence[str] = ()) -> None:
        """Raise UserError if a column has the name of an argument, or a required one is missing."""
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


def target_of(function: RewardFunction) -> Any:
    """The function or object itself, without bound options."""
    return function.func if isinstance(function, partial) else function


def is_async(function: RewardFunction) -> bool:
    target = target_of(function)
    call = getattr(target, "__call__", None)  # noqa: B004 - to inspect the method
    return any(map(inspect.iscoroutinefunction, (target, call)))


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The values of R rewards for B rollouts.

    weights: of each reward in this step; for a constraint its multiplier, negative if the value is
        to be lower.
    scales: values are divided by these before they are weighted; 1 except for constraints.
    values: [B, R] float64, NaN where a reward does not apply or failed; for a process reward the
        sum over its steps.
    failed: [B] bool, completions that failed, or on which a reward failed and was skipped. They
        have no total, and no algorithm receives them; other rewards keep their values there.
    steps: [B, T] float64, the weighted sum of process rewards at the decision where a step ends,
        NaN elsewhere; None if no reward judges steps.
    judges_steps: the names of process rewards.
    seconds, extra: by name, how long rewards took and the columns that they logged.
    metrics: by name, what they logged as numbers: the sum over completions, and their number.
    failures: by reward that failed, a sentence on why it did first.
    failure_counts: by the same names, on how many completions.
    reasons: why each failed completion failed, None for others; None if none failed.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    values: Tensor
    failed: Tensor
    seconds: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    metrics: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    failure_counts: Mapping[str, int] = field(default_factory=dict)
    reasons: Sequence[str | None] | None = None
    steps: Tensor | None = None
    judges_steps: frozenset[str] = frozenset()
    scales: tuple[float, ...] = ()

    @cached_property
    def total(self) -> Tensor:
        """[B] float64: sum_k w_k r_k / scale_k over the rewards that apply.

        NaN if none applies, or if the completion failed: a sum without the reward that failed would
        be a wrong one.
        """
        return self._sum(self.values)

    @cached_property
    def outcome(self) -> Tensor:
        """[B] float64: the total without process rewards."""
        return self._sum(self.outcomes)

    @cached_property
    def outcomes(self) -> Tensor:
        """[B, R] float64: the values of rewards that judge whole completions.

        NaN where a reward does not apply or judges steps, and where the completion failed.
        """
        judges = torch.tensor([name in self.judges_steps for name in self.names])
        return self.values.masked_fill(judges | self.failed.unsqueeze(1), math.nan)

    def _sum(self, values: Tensor) -> Tensor:
        factors = self.values.new_tensor(self.weights) / self.units
        nothing = values.isnan().all(dim=1) | self.failed
        return (values * factors).nansum(dim=1).masked_fill(nothing, math.nan)

    @property
    def units(self) -> Tensor:
        """[R]: `scales`, or ones."""
        return self.values.new_tensor(self.scales or [1.0] * len(self.names))

    def no_signal(self, groups: Tensor) -> Tensor:
        """[B] bool: in the rollout's group all outcomes are equal, and all step rewards."""
        same = zero_variance(self.outcome, groups)
        return same if self.steps is None else same & zero_variance_of_steps(self.steps, groups)

    def column(self, name: str) -> Tensor:
        """[B]: one reward's values."""
        return self.values[:, self.names.index(name)]

    def select(self, rows: Tensor) -> "Scores":
        """The scores of `rows` (indices or bool), without seconds, extra and metrics."""
        return Scores(
            names=self.names,
            weights=self.weights,
            values=self.values[rows],
            failed=self.failed[rows],
            reasons=None if self.reasons is None else _picked(self.reasons, rows),
            steps=None if self.steps is None else self.steps[rows],
            judges_steps=self.judges_steps,
            scales=self.scales,
        )

    @staticmethod
    def concat(parts: Sequence["Scores"]) -> "Scores":
        """One batch of all parts.

        Seconds, metrics and counts are summed; the first failure of each reward is kept. Raises
        RewardError if a reward returned step rewards for some completions and numbers for others.
        """
        first = parts[0]
        if len(parts) == 1:
            return first
        judges_steps = frozenset[str]().union(*(part.judges_steps for part in parts))
        _check_steps(parts, judges_steps)
        return Scores(
            names=first.names,
            weights=first.weights,
            values=torch.cat([part.values for part in parts]),
            failed=torch.cat([part.failed for part in parts]),
            steps=_joined([part.steps for part in parts], [len(part.values) for part in parts]),
            judges_steps=judges_steps,
            scales=first.scales,
            seconds=_sums([part.seconds for part in parts]),
            extra=_columns([part.extra for part in parts]),
            metrics=_pairs([part.metrics for part in parts]),
            failures={n: why for part in reversed(parts) for n, why in part.failures.items()},
            failure_counts=_sums([part.failure_counts for part in parts]),
            reasons=_joined_reasons(parts),
        )


def _check_steps(parts: Sequence[Scores], judges_steps: Collection[str]) -> None:
    for part, name in product(parts, sorted(judges_steps)):
        if name not in part.judges_steps and not part.column(name).isnan().all():
            raise RewardError(
                f"reward {name!r} returned lists of step rewards for some completions and numbers "
                f"for others: it must return the same for all, or None"
            )


def _picked(column: Sequence[Any], rows: Tensor) -> list[Any]:
    return [column[row] for row in torch.arange(len(column))[rows].tolist()]


def _joined_reasons(parts: Sequence[Scores]) -> list[str | None] | None:
    if all(part.reasons is None for part in parts):
        return None
    return [why for part in parts for why in part.reasons or [None] * len(part.failed)]


def _sums(parts: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def _pairs(parts: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    sums = _sums([{name: total for name, (total, _) in part.items()} for part in parts])
    counts = _sums([{name: count for name, (_, count) in part.items()} for part in parts])
    return {name: (sums[name], counts[name]) for name in sums}


def _columns(parts: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """The columns that all parts have."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: [value for part in parts for value in part[name]] for name in names}


def _joined(steps: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Steps of several batches, padded with NaN to the longest; None if no batch has any."""
    widths = [part.shape[1] for part in steps if part is not None]
    if not widths:
        return None
    joined = torch.full((sum(sizes), max(widths)), math.nan, dtype=torch.float64)
    start = 0
    for part, size in zip(steps, sizes, strict=True):
        if part is not None:
            joined[start : start + size, : part.shape[1]] = part
        start += size
    return joined
