"""check_reward: the properties that scoring requires of a reward."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from groupwise.rewards import Reward, RewardFunction
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise_testing import state
from groupwise_testing.draws import Rows
from groupwise_testing.laws import hold, law

ODD = ("", " ", "\n\n", "\x00", "{" * 60, "9" * 5000, "\\frac{", "<answer>", "\u0627\u202e\ufeff")
"""Odd texts that a model may write."""


def check_reward(
    function: RewardFunction,
    rows: Rows,
    completions: Sequence[Any],
    *,
    group_size: int = 1,
    facts: Mapping[str, Sequence[Any]] | None = None,
    decisions: Sequence[int] | None = None,
) -> None:
    """Check a reward on some completions. Raises AssertionError, naming the law that is broken.

    function: a function, or an instance of a reward's class, after its `load`. Use
        functools.partial for options.
    rows: a row of the dataset for each group. completions: `group_size` for each row, adjacent.
    facts: by name, one value per completion, of facts of a policy that the reward takes.
    decisions: the number of decisions of each completion, if the reward judges steps; else 1.
    """
    if len(rows) * group_size != len(completions) or len(rows) < 2:
        raise ValueError(
            f"check_reward: needs two rows or more and {group_size} completions for each, received "
            f"{len(rows)} rows and {len(completions)} completions"
        )
    lengths = torch.tensor([1] * len(completions) if decisions is None else decisions)
    whole = Rollouts(
        prompts=[row for row in rows for _ in range(group_size)],
        completions=list(completions),
        groups=torch.arange(len(rows)).repeat_interleave(group_size),
        mask=torch.arange(int(lengths.max())) < lengths.unsqueeze(1),
        truncated=torch.zeros(len(completions), dtype=torch.bool),
        facts=facts or {},
    )
    reward = Reward(name="reward", function=function)
    if reward.members.relative and group_size < 2:
        raise ValueError(
            "check_reward: a reward that is `relative` needs a group_size of 2 or more"
        )
    hold(reward.title, LAWS, Case(reward, whole, group_size))


class Case:
    """A reward, and all rollouts that it scores; groups: the rollouts of each, as numbers."""

    def __init__(self, reward: Reward, whole: Rollouts, size: int) -> None:
        self.reward, self.whole, self.scorer = reward, whole, Scorer([reward])
        self.groups = [own.tolist() for own in torch.arange(len(whole)).split(size)]

    def rollouts(self, chosen: Sequence[int] | None = None) -> Rollouts:
        """All rollouts, or some, as copies, since a reward may change them."""
        rollouts = self.whole if chosen is None else self.whole.select(chosen)
        prompts, completions = copy.deepcopy((rollouts.prompts, rollouts.completions))
        return replace(rollouts, prompts=prompts, completions=completions)

    def score(self, rollouts: Rollouts) -> Tensor:
        """[B, 1 + T]: each completion's reward, and those of its steps, NaN without any."""
        scores = self.scorer(rollouts)
        steps = torch.full((len(rollouts), self.whole.mask.shape[1]), math.nan).double()
        if scores.steps is not None:
            steps[:, : scores.steps.shape[1]] = scores.steps
        return torch.cat([scores.values, steps], dim=1)

    @cached_property
    def values(self) -> Tensor:
        """The values of all rollouts in one batch."""
        return self.score(self.rollouts())

    def difference(self, chosen: Sequence[int] | None = None) -> str | None:
        """How values of some rollouts, or of all once more, differ from those in one batch of all;
        None if they are equal."""
        values = self.score(self.rollouts(chosen))
        chosen = range(len(self.whole)) if chosen is None else chosen
        expected = self.values[list(chosen)]
        equal = torch.isclose(values, expected, rtol=1e-4, atol=1e-5, equal_nan=True).all(dim=1)
        if bool(equal.all()):
            return None
        first = int((~equal).nonzero()[0])
        return (
            f"completion {chosen[first]} has reward {values[first, 0]:.6g}, and "
            f"{expected[first, 0]:.6g} in the batch of all"
        )


@law(
    "the reward returns one value per completion",
    hint="what it returns: a number or None for each completion, in order",
)
def one_value(case: Case) -> str | None:
    if bool(case.values[:, 0].isnan().all()):
        return "it applies to none of these completions, so there is nothing to check"
    return None


@law(
    "the same completion has the same reward",
    hint="random draws, clocks, and memory of earlier calls",
)
def same(case: Case) -> str | None:
    return case.difference()


@law(
    "a completion's reward does not depend on the batch",
    hint="statistics over the batch; a batch has whole groups, any number of them",
)
def any_batch(case: Case) -> str | None:
    for group in case.groups:
        if wrong := case.difference(group):
            return f"scored alone, {wrong}"
    return None


@law(
    "a completion's reward does not depend on the order",
    hint="values taken by position, or remembered from the completion before",
)
def any_order(case: Case) -> str | None:
    backwards = [number for group in reversed(case.groups) for number in group]
    wrong = case.difference(backwards)
    return None if wrong is None else f"with the groups in reverse, {wrong}"


@law(
    "any text gets a reward, without an exception",
    hint="parsing: a model may write anything; text without an answer gets 0, or None",
)
def any_text(case: Case) -> str | None:
    first, *others = case.whole.completions
    if case.whole.mask.shape[1] > 1:
        return None  # step rewards need decisions, which a made-up text does not have
    if isinstance(first, str):
        odd: list[Any] = list(ODD)
    elif isinstance(first, list) and first and isinstance(first[-1], Mapping):
        odd = [[*first[:-1], {**first[-1], "content": text}] for text in ODD]
    else:
        return None
    for text in odd:
        try:
            case.score(replace(case.rollouts(), completions=[text, *others]))
        except Exception as error:
            raise ValueError(f"for {text!r:.60}: {error}") from error
    return None


@law(state.NAME, hint=state.HINT)
def survives(case: Case) -> str | None:
    members = case.reward.members
    if members.state_dict is None:
        return None
    return state.lost_in_checkpoint(members, members, "the reward") or case.difference()


LAWS = (one_value, same, any_batch, any_order, any_text, survives)
