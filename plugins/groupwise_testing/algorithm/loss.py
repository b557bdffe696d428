"""Laws of an algorithm's loss."""

from dataclasses import replace

import torch
from torch import Tensor

from groupwise import objective
from groupwise.algorithms.parts import Composed
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise_testing.algorithm.case import REWARDS, WHOLE, Case, FirstUpdate, gradient_gap
from groupwise_testing.algorithm.toy import Toy, toy_scores
from groupwise_testing.laws import law


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
        whole, _ = case.update(first=first)
        for budget in budgets:
            toy = case.toy()
            toy.cuts = cuts
            gradient, _ = case.update(toy=toy, budget=budget, first=first)
            if wrong := gradient_gap(gradient, whole):
                number = "first" if first else "second"
                return f"in micro-batches of {budget} decisions of the {number} update {wrong}"
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
        if wrong := gradient_gap(case.update(toy=toy)[0], expected):
            return f"with {behind:g} added to all outputs outside the mask {wrong}"
    return None


@law(
    "infinite padding leaves the gradient finite",
    hint="`loss`: mask log-probs before the exponential, as `objective.token_log_ratio` does; "
    "after it the gradient is NaN",
)
def infinite(case: Case) -> str | None:
    expected, _ = case.update()
    toy = case.toy()
    toy.infinite = True
    gradient, measured = case.update(toy=toy)
    if wrong := gradient_gap(gradient, expected):
        loss = measured["loss"]
        return f"with infinite log-probs outside the mask {wrong}, and the loss is {loss:g}"
    return None


@law(
    "every decision has a gradient, also behind holes of the mask",
    hint="`loss`, `targets`: use `mask` for positions, not `lengths`, which counts decisions",
)
def holes(case: Case) -> str | None:
    rollouts, mask = case.rollouts, case.rollouts.mask
    gradients = FirstUpdate(case).gradients().values()
    sizes = torch.stack([g.abs().reshape(*mask.shape, -1).sum(dim=2) for g in gradients]).sum(dim=0)
    outside = float(sizes.masked_fill(mask, 0.0).abs().max())
    if outside > 0:
        return f"positions outside the mask have a gradient of up to {outside:.3g}"
    taught = (sizes > 0).any(dim=1) & (rollouts.lengths < rollouts.extents)
    places = torch.arange(mask.shape[1])
    far = mask & (places >= rollouts.lengths.unsqueeze(1)) & taught.unsqueeze(1)
    if bool(far.any()) and not bool((sizes[far] > 0).any()):
        return f"none of {int(far.sum())} decisions behind holes has a gradient, but others have"
    return None


@law(
    "`active` leaves out only rollouts without gradient",
    hint="`active`: False only if the loss of a rollout cannot have a gradient",
)
def left_out(case: Case) -> str | None:
    rewards = (*REWARDS[:4], 0.5, 0.5, 0.5, 0.5, *REWARDS[8:])
    some, _ = case.update(rewards)
    everything, _ = case.update(rewards, everything=True)
    wrong = gradient_gap(some, everything)
    return None if wrong is None else f"with the rollouts left out by `active` {wrong}"


@law(
    "an update makes rewarded completions likelier",
    hint="the signs of advantages and loss: the loss is minimised",
)
def improves(case: Case) -> str | None:
    if "log_probs" not in case.algorithm.needs:
        return None
    toy = case.toy(spread=0.0)  # it scores the distribution that it draws from
    case.update(toy=toy, first=True)
    before = _likely(toy, case.rollouts)
    with torch.no_grad():
        for parameter in toy.parameters():
            if parameter.grad is not None:
                size = max(float(parameter.grad.norm()), 1e-30)
                parameter.sub_(parameter.grad, alpha=1e-3 / size)
    total = torch.tensor(REWARDS, dtype=torch.float64).view(3, 4)
    better = (total - total.mean(dim=1, keepdim=True)).flatten()
    gain = float((better * (_likely(toy, case.rollouts) - before)).sum())
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
    every = [toy_scores(REWARDS)]
    if isinstance(case.algorithm, Composed):  # supports process rewards
        every.append(_with_steps(every[0], case.rollouts))
    for scores in every:
        update = FirstUpdate(case, scores)
        if "advantages" not in update.batch:
            return None
        one, other = update.gradients(), update.gradients(**update.without_advantages)
        pull = one["log_probs"] - other["log_probs"]
        wrong = pull * objective.per_decision(update.batch["advantages"]) > 1e-12
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
    update = FirstUpdate(case)

    def change(**advantages: Tensor) -> float:
        """How much log-probs of the sampler that are higher by 1 nat change gradients, at most."""
        old = update.batch["old_log_probs"]
        one, other = (
            update.gradients(**advantages, sampler_log_probs=old + shift) for shift in (0.0, 1.0)
        )
        return max(float((one[name] - other[name]).abs().max()) for name in one)

    if not change() > 0:
        return "sampler log-probs that are higher by 1 nat do not change the gradient"
    largest = change(**update.without_advantages)
    if largest > 1e-12:
        return f"with advantages of 0, sampler log-probs change gradients by up to {largest:.3g}"
    return None


LAWS = (
    *(teaches, microbatches, cut_apart, padding, infinite, holes, left_out, improves),
    *(own_advantage, corrected),
)
