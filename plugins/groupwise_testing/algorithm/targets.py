"""Laws of an algorithm's targets."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from groupwise.rollouts import Rollouts
from groupwise_testing.algorithm.case import LIMIT, REWARDS, Case
from groupwise_testing.laws import law
from groupwise_testing.state import has_state


@law(
    "`needs`, `old`, `reference` and `target_inputs` name all outputs that it reads",
    hint="`needs`, `old`, `reference`, `target_inputs`: a policy leaves out what a pass is not "
    "asked for; the current outputs are those in `needs`",
)
def declares(case: Case) -> str | None:
    for first in (True, False):
        case.update(first=first)
    return None


@law(
    "targets have the shapes of the whole update",
    hint="`targets`: `weights` [B, T] and others [B] or [B, T], float32, finite",
)
def shapes(case: Case) -> str | None:
    shape, targets = case.rollouts.mask.shape, case.targets(REWARDS)
    if "weights" not in targets:
        return f"there are no `weights` among {sorted(targets)}"
    if targets["weights"].shape != shape:
        return f"weights are {list(targets['weights'].shape)}, expected {list(shape)}"
    for name, value in targets.items():
        if value.shape not in (shape, shape[:1]):
            return f"{name} is {list(value.shape)}, expected [B] or [B, T]"
        if value.dtype != torch.float32:
            return f"{name} is {value.dtype}, expected torch.float32"
    wrong = _not_finite(targets)
    return None if wrong is None else f"{wrong} is not finite everywhere"


@law(
    "`weights` divide by counts over the whole update",
    hint="`weights`: divide by rollouts or decisions of the whole update, as `objective.weights` "
    "does, so that the loss is a plain sum",
)
def weights(case: Case) -> str | None:
    once = case.rollouts
    twice = Rollouts.concat([once, replace(once, groups=once.groups + len(once))])
    single, double = (
        float(case.targets(rewards, rollouts)["weights"].double().abs().sum())
        for rewards, rollouts in ((REWARDS, once), (REWARDS * 2, twice))
    )
    if abs(double - single) > 1e-4 * single:
        return (
            f"they sum to {single:.4g}, and to {double:.4g} over the same rollouts twice; "
            f"expected the same sum"
        )
    return None


@law(
    "equal rewards teach nothing",
    hint="`advantages`: relative to the group, also if all rewards are equal",
)
def equal_rewards(case: Case) -> str | None:
    if case.algorithm.target_inputs or has_state(case.algorithm):
        return None  # outputs of the policy, such as values, or earlier steps may be the baseline
    targets = case.targets([0.3] * len(case.rollouts))
    if "advantages" not in targets:
        return None
    most = float(targets["advantages"].abs().max())
    return f"equal rewards have advantages up to {most:.3g}, expected 0" if most > 1e-6 else None


@law(
    "a completion without a reward teaches nothing",
    hint="`targets`: a NaN reward means that none applies; it is not 0 and enters no mean",
)
def without_reward(case: Case) -> str | None:
    some = [math.nan, *REWARDS[1:8], *[math.nan] * 4]  # one of the first group, all of the last
    targets = case.targets(some)
    if name := _not_finite(targets):
        return f"{name} is not finite if a reward is NaN"
    if "advantages" not in targets or case.algorithm.target_inputs:
        return None
    missing, advantages = torch.tensor(some).isnan(), targets["advantages"]
    most = float(advantages[missing].abs().max())
    if most > 0:
        return f"completions whose reward is NaN have advantages of up to {most:.3g}"
    without = case.targets(some[1:8], case.rollouts.select(~missing))["advantages"]
    gap = float((without - advantages[~missing]).abs().max())
    if gap > LIMIT:
        return f"leaving out completions whose reward is NaN changes other advantages by {gap:.3g}"
    return None


@law(
    "rollouts may come in any order",
    hint="`targets`: a group is the rows with one number in `rollouts.groups`, in any order",
)
def any_order(case: Case) -> str | None:
    order = torch.randperm(len(REWARDS), generator=torch.Generator().manual_seed(0))
    for name, gap in _changes(case, torch.arange(len(REWARDS)), order):
        if gap > LIMIT:
            return f"{name} of rollouts in another order differ by up to {gap:.3g}"
    return None


@law(
    "completions that failed may be missing from their group",
    hint="`targets`: groups may have different sizes; take them from `rollouts.groups`, never by a "
    "reshape to [groups, size]",
)
def without_failed(case: Case) -> str | None:
    rest = torch.tensor([number for number in range(len(REWARDS)) if number not in (0, 1, 8, 11)])
    for name, gap in _changes(case, rest, torch.cat([rest[::2], rest[1::2]])):
        if not math.isfinite(gap):
            return f"{name} is not finite if completions are missing"
        if gap > LIMIT:
            return f"{name} of the others, in another order, differ by up to {gap:.3g}"
    return None


def _changes(case: Case, rows: Tensor, order: Tensor) -> Iterator[tuple[str, float]]:
    """How each target of some rollouts changes if they come in another order; NaN if one is not
    finite."""
    one, other = (
        case.targets(
            [REWARDS[number] for number in numbers.tolist()], case.rollouts.select(numbers)
        )
        for numbers in (rows, order)
    )
    moved = torch.searchsorted(rows, order)
    for name, value in one.items():
        yield name, float((value[moved] - other[name]).abs().max())


def _not_finite(targets: Mapping[str, Tensor]) -> str | None:
    """The first target that is not finite everywhere."""
    return next((name for name, value in targets.items() if not bool(value.isfinite().all())), None)


LAWS = (declares, shapes, weights, equal_rewards, without_reward, any_order, without_failed)
