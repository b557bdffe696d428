"""Laws of an algorithm's loss."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Algorithm
from groupwise.algorithms.parts import Composed
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.testing import compare
from groupwise.testing.algorithm.case import LIMIT, REWARDS, WHOLE, Case
from groupwise.testing.algorithm.toy import Toy, toy_rollouts, toy_scores
from groupwise.testing.law import law
from groupwise.testing.updater import updater_of
from groupwise.training.training_batch import TrainingBatch
from groupwise.weights import KeptWeights


@law(
    "different rewards give a gradient",
    hint="`targets`, `loss`: in a step's first update the old outputs are the policy's own, so a "
    "loss that only measures the distance to them has gradient 0",
)
def teaches(case: Case) -> str | None:
    gradient, _ = case.update(first=True)
    return None if float(gradient.norm()) > 0 else "the gradient of a step's first update is 0"


@law(
    "the gradient does not depend on micro-batches",
    hint="`loss`: weighted values per decision; no mean over a micro-batch, no division by rows",
)
def microbatches(case: Case) -> str | None:
    return _same_gradient(case, cuts=False, budgets=(1, 13))


@law(
    "cutting rollouts apart changes no gradient, unless couples_decisions",
    hint="`couples_decisions`: True if a decision's loss depends on others of its rollout",
)
def cut_apart(case: Case) -> str | None:
    return _same_gradient(case, cuts=True, budgets=(13, WHOLE))


def _same_gradient(case: Case, *, cuts: bool, budgets: tuple[int, ...]) -> str | None:
    for first in (True, False):
        toy = case.toy()
        whole, _ = case.update(toy=toy, first=first)
        toy.cuts = cuts
        for budget in budgets:
            gradient, _ = case.update(toy=toy, budget=budget, first=first)
            gap = compare.direction_gap(gradient, whole)
            if gap > LIMIT:
                return (
                    f"in micro-batches of {budget} decisions the gradient of the "
                    f"{'first' if first else 'second'} update differs by {gap:.2g} of its norm"
                )
    return None


@law(
    "padding changes no gradient",
    hint="`loss`: values outside the mask are arbitrary; use torch.where, since 0 x inf is NaN",
)
def padding(case: Case) -> str | None:
    expected, _ = case.update()
    for behind in (1e4, -1e4):
        toy = case.toy()
        toy.behind = behind
        gap = compare.direction_gap(case.update(toy=toy)[0], expected)
        if gap > LIMIT:
            return (
                f"with {behind:g} added to all outputs outside the mask the gradient differs by "
                f"{gap:.2g} of its norm"
            )
    return None


@law(
    "infinite padding leaves the gradient finite",
    hint="`loss`: mask log-probs before the exponential, as `objective.token_log_ratio` does; "
    "after it the gradient is NaN",
)
def infinite(case: Case) -> str | None:
    toy = case.toy()
    expected, _ = case.update(toy=toy)
    toy.infinite = True
    gradient, measured = case.update(toy=toy)
    gap = compare.direction_gap(gradient, expected)
    if gap > LIMIT:
        return (
            f"with infinite log-probs outside the mask the gradient differs by {gap:.2g} of its "
            f"norm, and the loss is {measured['loss']:g}"
        )
    return None


@law(
    "every decision has a gradient, also behind holes of the mask",
    hint="`loss`, `targets`: use `mask` for positions, not `lengths`, which counts decisions",
)
def holes(case: Case) -> str | None:
    toy = case.toy()
    rollouts = toy_rollouts(toy)
    outputs = _leaves(case, toy, rollouts)
    sizes = torch.stack([_size(value.grad, rollouts.mask) for value in outputs.values()]).sum(dim=0)
    outside = float(sizes.masked_fill(rollouts.mask, 0.0).abs().max())
    if outside > 0:
        return f"positions outside the mask have a gradient of up to {outside:.3g}"
    taught = (sizes > 0).any(dim=1) & (rollouts.lengths < rollouts.extents)
    places = torch.arange(rollouts.mask.shape[1])
    far = rollouts.mask & (places >= rollouts.lengths.unsqueeze(1)) & taught.unsqueeze(1)
    if bool(far.any()) and not bool((sizes[far] > 0).any()):
        return f"none of {int(far.sum())} decisions behind holes has a gradient, but others have"
    return None


def _leaves(
    case: Case, toy: Toy, rollouts: Rollouts, *, taught: bool = True, shift: float | None = None
) -> dict[str, Tensor]:
    """The policy's outputs in a first update, with the loss's gradient with respect to each.

    taught: False for advantages of 0. shift: sampler's - policy's log-probs; if unset the batch has
    no log-probs of a sampler.
    """
    leaves, current, batch, algorithm = _batch(case, toy, rollouts, toy_scores(REWARDS))
    if not taught and "advantages" in batch:
        batch["advantages"] = torch.zeros_like(batch["advantages"])
    if shift is not None:
        batch["sampler_log_probs"] = batch["old_log_probs"] + shift
    loss = algorithm.loss(current, batch)
    if loss.shape != rollouts.mask.shape:
        raise ValueError(
            f"the loss has shape {list(loss.shape)}, expected {list(rollouts.mask.shape)}, one "
            f"number per decision"
        )
    loss.sum().backward()
    return leaves


def _batch(
    case: Case, toy: Toy, rollouts: Rollouts, scores: Scores
) -> tuple[dict[str, Tensor], LogProbs, dict[str, Tensor], Algorithm]:
    """The outputs as leaves, as `LogProbs`, the batch of the loss, and the algorithm."""
    algorithm = copy.deepcopy(case.algorithm)
    algorithm.prepare(toy, KeptWeights(toy))
    updater = updater_of(toy, algorithm, WHOLE)
    before = case.outputs(updater, toy, rollouts, first=True)
    targets = updater.targets(TrainingBatch(rollouts=rollouts, scores=scores), before)
    with torch.no_grad():
        outputs = compare.outputs(toy(rollouts, outputs=algorithm.needs | algorithm.old))
    leaves = {name: value.clone().requires_grad_() for name, value in outputs.items()}
    extra = {name: leaves[name] for name in leaves if name not in ("log_probs", "entropy")}
    current = LogProbs(
        log_probs=leaves.get("log_probs"), entropy=leaves.get("entropy"), extra=extra
    )
    batch = {**targets, "mask": rollouts.mask, **before}
    batch |= {f"old_{name}": outputs[name] for name in algorithm.old}
    return leaves, current, batch, algorithm


def _size(grad: Tensor | None, mask: Tensor) -> Tensor:
    """[b, t]: the size of a gradient [b, t, ...] at each position."""
    if grad is None:
        return torch.zeros(mask.shape, dtype=torch.float64)
    return grad.abs() if grad.ndim == 2 else grad.flatten(2).abs().sum(dim=2)


@law(
    "`active` leaves out only rollouts without gradient",
    hint="`active`: False only if the loss of a rollout cannot have a gradient",
)
def left_out(case: Case) -> str | None:
    rewards = (*REWARDS[:4], 0.5, 0.5, 0.5, 0.5, *REWARDS[8:])
    some, _ = case.update(rewards)
    everything, _ = case.update(rewards, everything=True)
    gap = compare.direction_gap(some, everything)
    if gap > LIMIT:
        return f"with the rollouts left out by `active` the gradient differs by {gap:.2g}"
    return None


@law(
    "an update makes rewarded completions likelier",
    hint="the signs of advantages and loss: the loss is minimised",
)
def improves(case: Case) -> str | None:
    if "log_probs" not in case.algorithm.needs:
        return None
    toy = case.toy(spread=0.0)  # it scores the distribution that it draws from
    rollouts = toy_rollouts(toy)
    case.update(toy=toy, rollouts=rollouts, first=True)
    before = _likely(toy, rollouts)
    with torch.no_grad():
        for parameter in toy.parameters():
            if parameter.grad is not None:
                parameter.sub_(
                    parameter.grad, alpha=1e-3 / max(float(parameter.grad.norm()), 1e-30)
                )
    total = torch.tensor(REWARDS, dtype=torch.float64).view(3, 4)
    better = (total - total.mean(dim=1, keepdim=True)).flatten()
    gain = float((better * (_likely(toy, rollouts) - before)).sum())
    if not gain > 0:
        return (
            f"after a small step the sum over rollouts of (reward - mean of its group) x change of "
            f"its log-prob is {gain:.3g}, expected above 0"
        )
    return None


@torch.no_grad()
def _likely(toy: Toy, rollouts: Rollouts) -> Tensor:
    """[B]: the mean log-prob of each rollout's decisions."""
    log_probs = toy(rollouts).log_probs
    assert log_probs is not None
    return (objective.weights(rollouts.mask, normalize="sequence").double() * log_probs).sum(dim=1)


@law(
    "an advantage moves its own decision",
    hint="`loss`: at ratio 1 the gradient of a decision's log-prob has the sign of -A, also with "
    "step rewards",
)
def own_advantage(case: Case) -> str | None:
    if "log_probs" not in case.algorithm.needs:
        return None
    toy = case.toy()
    rollouts = toy_rollouts(toy)
    every = [toy_scores(REWARDS)]
    if isinstance(case.algorithm, Composed):  # supports process rewards
        every.append(_with_steps(every[0], rollouts))
    for scores in every:
        leaves, current, batch, algorithm = _batch(case, toy, rollouts, scores)
        if "advantages" not in batch:
            return None
        nothing = {**batch, "advantages": torch.zeros_like(batch["advantages"])}
        pull = algorithm.loss(current, batch) - algorithm.loss(current, nothing)
        (pull,) = torch.autograd.grad(pull.sum(), leaves["log_probs"], allow_unused=True)
        if pull is None:
            continue
        wrong = pull * objective.per_decision(batch["advantages"]) > 1e-12
        if bool(wrong.any()):
            return f"{int(wrong.sum())} decisions are pushed against their advantage"
    return None


def _with_steps(scores: Scores, rollouts: Rollouts) -> Scores:
    """The same scores, with a step reward in -1 to 1 for each decision."""
    places = torch.arange(rollouts.mask.shape[1], dtype=torch.float64)
    rows = torch.arange(len(rollouts), dtype=torch.float64).unsqueeze(1)
    steps = (3 * places + rows).cos().masked_fill(~rollouts.mask, torch.nan)
    return replace(scores, steps=steps)


@law(
    "importance weights multiply the surrogate only",
    hint="`corrects`, `loss`: if it is True, the importance weight exp(old_log_probs - "
    "sampler_log_probs) multiplies the surrogate, and neither KL nor entropy",
)
def corrected(case: Case) -> str | None:
    if not (case.algorithm.corrects and "log_probs" in case.algorithm.old):
        return None
    toy = case.toy()
    rollouts = toy_rollouts(toy)
    largest = {}
    for taught in (True, False):
        one, other = (_leaves(case, toy, rollouts, taught=taught, shift=by) for by in (0.0, 1.0))
        pairs = [(one[name].grad, other[name].grad) for name in one]
        gaps = [a - b for a, b in pairs if a is not None and b is not None]
        largest[taught] = max((float(gap.abs().max()) for gap in gaps), default=0.0)
    if not largest[True] > 0:
        return "sampler log-probs that are higher by 1 nat do not change the gradient"
    if largest[False] > 1e-12:
        return (
            f"with advantages of 0, sampler log-probs change gradients by up to "
            f"{largest[False]:.3g}"
        )
    return None


LAWS = (
    *(teaches, microbatches, cut_apart, padding, infinite, holes, left_out, improves),
    *(own_advantage, corrected),
)
