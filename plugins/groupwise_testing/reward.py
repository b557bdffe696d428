"""check_reward: the properties that scoring requires of a reward."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from groupwise.rewards import Reward, RewardFunction
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise.storage.state import decode, encode
from groupwise_testing import compare
from groupwise_testing.laws import hold, law

Rows = Sequence[Mapping[str, Any]]

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
    whole = [row for row in rows for _ in range(group_size)]
    lengths = [1] * len(whole) if decisions is None else list(decisions)
    case = Case(function, whole, list(completions), group_size, dict(facts or {}), lengths)
    reward = case.scorer.rewards[0]
    if reward.members.relative and group_size < 2:
        raise ValueError(
            "check_reward: a reward that is `relative` needs a group_size of 2 or more"
        )
    hold(reward.title, LAWS, case)


@dataclass
class Case:
    """A reward and what to score; rows: one per completion."""

    function: RewardFunction
    rows: list[Mapping[str, Any]]
    completions: list[Any]
    size: int
    facts: dict[str, Sequence[Any]]
    lengths: list[int]
    values: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def groups(self) -> list[list[int]]:
        """The indices of each group's completions."""
        every = range(0, len(self.rows), self.size)
        return [list(range(start, start + self.size)) for start in every]

    def rollouts(self, chosen: Sequence[int] | None = None) -> Rollouts:
        """All completions, or some, as copies, since a reward may change them."""
        chosen = range(len(self.rows)) if chosen is None else chosen
        lengths = torch.tensor([self.lengths[number] for number in chosen])
        rows, completions = copy.deepcopy((self.rows, self.completions))
        return Rollouts(
            prompts=[rows[number] for number in chosen],
            completions=[completions[number] for number in chosen],
            groups=torch.tensor([number // self.size for number in chosen]),
            mask=torch.arange(int(lengths.max())) < lengths.unsqueeze(1),
            truncated=torch.zeros(len(chosen), dtype=torch.bool),
            facts={name: [column[n] for n in chosen] for name, column in self.facts.items()},
        )

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer([Reward(name="reward", function=self.function)])

    def score(self, rollouts: Rollouts) -> Tensor:
        """[B, 1 + T]: each completion's reward, and those of its steps, NaN without any."""
        scores = self.scorer(rollouts)
        steps = torch.full((len(rollouts), max(self.lengths)), math.nan, dtype=torch.float64)
        if scores.steps is not None:
            steps[:, : scores.steps.shape[1]] = scores.steps
        return torch.cat([scores.values, steps], dim=1)

    def differ(self, values: Tensor, chosen: Sequence[int]) -> str | None:
        """How values of some completions differ from those in one batch of all; None if equal."""
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
    case.values = case.score(case.rollouts())
    if bool(case.values[:, 0].isnan().all()):
        return "it applies to none of these completions, so there is nothing to check"
    return None


@law(
    "the same completion has the same reward",
    hint="random draws, clocks, and memory of earlier calls",
)
def same(case: Case) -> str | None:
    return case.differ(case.score(case.rollouts()), range(len(case.rows)))


@law(
    "a completion's reward does not depend on the batch",
    hint="statistics over the batch; a batch has whole groups, any number of them",
)
def any_batch(case: Case) -> str | None:
    for group in case.groups:
        wrong = case.differ(case.score(case.rollouts(group)), group)
        if wrong is not None:
            return f"scored alone, {wrong}"
    return None


@law(
    "a completion's reward does not depend on the order",
    hint="values taken by position, or remembered from the completion before",
)
def any_order(case: Case) -> str | None:
    backwards = [number for group in reversed(case.groups) for number in group]
    wrong = case.differ(case.score(case.rollouts(backwards)), backwards)
    return None if wrong is None else f"with the groups in reverse, {wrong}"


@law(
    "the reward does not change its arguments",
    hint="sorting, popping and writing in place into rows, completions and columns",
)
def changes_nothing(case: Case) -> str | None:
    rollouts = case.rollouts()
    case.score(rollouts)
    for what, before, after in (
        ("row", case.rows, rollouts.prompts),
        ("completion", case.completions, rollouts.completions),
    ):
        for number, (was, now) in enumerate(zip(before, after, strict=True)):
            if compare.completions_gap(was, now) != 0:
                return f"{what} {number} was {was!s:.80}, and is {now!s:.80}"
    return None


@law(
    "any text gets a reward, without an exception",
    hint="parsing: a model may write anything; text without an answer gets 0, or None",
)
def any_text(case: Case) -> str | None:
    first = case.completions[0]
    if isinstance(first, str):
        odd: list[Any] = list(ODD)
    elif isinstance(first, list) and first and isinstance(first[-1], Mapping):
        odd = [[*first[:-1], {**first[-1], "content": text}] for text in ODD]
    else:
        return None
    if case.lengths != [1] * len(case.lengths):
        return None  # step rewards need decisions, which a made-up text does not have
    for text in odd:
        changed = list(case.completions)
        changed[0] = text
        try:
            case.score(replace(case.rollouts(), completions=changed))
        except Exception as error:
            raise ValueError(f"for {text!r:.60}: {error}") from error
    return None


@law(
    "its state survives a checkpoint",
    hint="`state_dict` and `load_state_dict`: numbers, strings, tensors, lists and mappings",
)
def state(case: Case) -> str | None:
    members = case.scorer.rewards[0].members
    if members.state_dict is None or members.load_state_dict is None:
        return None
    saved = encode(members.state_dict(), "the reward")
    members.load_state_dict(decode(*saved))
    again = encode(members.state_dict(), "the reward")
    if saved[0] != again[0] or any(not torch.equal(v, again[1][n]) for n, v in saved[1].items()):
        return f"saved {saved[0]}, and after loading it is {again[0]}"
    return case.differ(case.score(case.rollouts()), range(len(case.rows)))


LAWS = (one_value, same, any_batch, any_order, changes_nothing, any_text, state)
