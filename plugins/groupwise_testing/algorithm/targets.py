"""Laws of an algorithm's targets."""

import math
from dataclasses import replace

import torch

from groupwise.rollouts import Rollouts
from groupwise.training.training_batch import TrainingBatch
from groupwise_testing.algorithm.case import REWARDS, Case
from groupwise_testing.algorithm.toy import toy_rollouts, toy_scores
from groupwise_testing.laws import law


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
    toy = case.toy()
    rollouts = toy_rollouts(toy)
    targets = case.targets(toy_scores(REWARDS), rollouts, toy)
    if "weights" not in targets:
        return f"there are no `weights` among {sorted(targets)}"
    if targets["weights"].shape != rollouts.mask.shape:
        shape = list(targets["weights"].shape)
        return f"weights are {shape}, expected {list(rollouts.mask.shape)}"
    for name, value in targets.items():
        if value.shape not in (rollouts.mask.shape, rollouts.mask.shape[:1]):
            return f"{name} is {list(value.shape)}, expected [B] or [B, T]"
        if value.dtype != torch.float32:
            return f"{name} is {value.dtype}, expected torch.float32"
        if not bool(value.isfinite().all()):
            return f"{name} is not finite everywhere"
    return None


@law(
    "`weights` divide by counts over the whole update",
    hint="`weights`: divide by rollouts or decisions of the whole update, as `objective.weights` "
    "does, so that the loss is a plain sum",
)
def weights(case: Case) -> str | None:
    toy = case.toy()
    once = toy_rollouts(toy)
    twice = Rollouts.concat([once, replace(once, groups=once.groups + len(once))])
    single, double = (
        float(case.targets(toy_scores(rewards), rollouts, toy)["weights"].double().abs().sum())
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
    if case.algorithm.target_inputs:
        return None  # outputs of the policy, such as values, may be another baseline
    toy = case.toy()
    rollouts = toy_rollouts(toy)
    targets = case.targets(toy_scores([0.3] * len(rollouts)), rollouts, toy)
    if "advantages" not in targets:
        return None
    most = float(targets["advantages"].abs().max())
    return f"equal rewards have advantages up to {most:.3g}, expected 0" if most > 1e-6 else None


@law(
    "a completion without a reward teaches nothing",
    hint="`targets`: a NaN reward means that none applies; it is not 0 and enters no mean",
)
def without_reward(case: Case) -> str | None:
    toy = case.toy()
    rollouts = toy_rollouts(toy)
    some = [math.nan, *REWARDS[1:8], *[math.nan] * 4]  # one of the first group, all of the last
    targets = case.targets(toy_scores(some), rollouts, toy)
    for name, value in targets.items():
        if not bool(value.isfinite().all()):
            return f"{name} is not finite if a reward is NaN"
    if "advantages" not in targets or case.algorithm.target_inputs:
        return None
    missing = torch.tensor(some).isnan()
    most = float(targets["advantages"][missing].abs().max())
    if most > 0:
        return f"completions whose reward is NaN have advantages of up to {most:.3g}"
    rest = [value for value in some if not math.isnan(value)]
    without = case.targets(toy_scores(rest), rollouts.select(~missing), toy)["advantages"]
    gap = float((without - targets["advantages"][~missing]).abs().max())
    if gap > 1e-5:
        return f"leaving out completions whose reward is NaN changes other advantages by {gap:.3g}"
    return None


@law(
    "rollouts may come in any order",
    hint="`targets`: a group is the rows with one number in `rollouts.groups`, in any order",
)
def any_order(case: Case) -> str | None:
    toy = case.toy()
    rollouts, values = toy_rollouts(toy), torch.tensor(REWARDS, dtype=torch.float64)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0))
    one = case.targets(toy_scores(values.tolist()), rollouts, toy)
    other = case.targets(toy_scores(values[order].tolist()), rollouts.select(order), toy)
    for name, value in one.items():
        gap = float((value[order] - other[name]).abs().max())
        if gap > 1e-5:
            return f"{name} of rollouts in another order differ by up to {gap:.3g}"
    return None


@law(
    "completions that failed may be missing from their group",
    hint="`targets`: groups may have different sizes; take them from `rollouts.groups`, never by a "
    "reshape to [groups, size]",
)
def without_failed(case: Case) -> str | None:
    toy = case.toy()
    rollouts, failed = toy_rollouts(toy), torch.zeros(len(REWARDS), dtype=torch.bool)
    failed[[0, 1, 8, 11]] = True
    scores = replace(toy_scores([*[math.nan] * 2, *REWARDS[2:]]), failed=failed)
    usable = TrainingBatch(rollouts=rollouts, scores=scores).without_failed()
    one = case.targets(usable.scores, usable.rollouts, toy)
    places = torch.arange(len(usable.rollouts))
    order = torch.cat([places[::2], places[1::2]])
    other = case.targets(usable.scores.select(order), usable.rollouts.select(order), toy)
    for name, value in one.items():
        if not bool(value.isfinite().all()):
            return f"{name} is not finite if completions are missing"
        gap = float((value[order] - other[name]).abs().max())
        if gap > 1e-5:
            return f"{name} of the others, in another order, differ by up to {gap:.3g}"
    return None


LAWS = (declares, shapes, weights, equal_rewards, without_reward, any_order, without_failed)
