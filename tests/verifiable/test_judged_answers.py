"""Lists of right and wrong answers in the styles of small language models, and what is paid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise_verifiable.mathematics.reward import MathEquivalence
from groupwise_verifiable.text.answers import ExactAnswer, NumericAnswer

REWARDS = {"math": MathEquivalence, "numeric_answer": NumericAnswer, "exact_answer": ExactAnswer}
LISTS = Path(__file__).with_name("answers")
# What docs/rewards.md says of the last number of a text: words around it do not count.
PAID = {
    "It is 17 or 18.",
    "The possible values are 12, 18",
    "He certainly does not earn 18.",
    "He earns 18 cents.",
    "He earns 18%",
}
Row = dict[str, Any]


def rows(name: str) -> list[Row]:
    lines = (LISTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def paid(some: Sequence[Row]) -> list[Row]:
    every = []
    for row in some:
        reward = REWARDS[row["reward"]]
        judge = reward(reward.Config(**row["config"]))
        value = judge([row["prompt"]], [row["text"]], answer=[row["gold"]])[0]
        assert value in (0.0, 1.0, None), row
        every += [row] if value else []
    return every


@pytest.mark.parametrize("name", ["right", "right_later", "right_last"])
def test_right_answers_are_paid(name: str) -> None:
    some = rows(name)
    for reward in REWARDS:
        of_reward = [row for row in some if row["reward"] == reward]
        assert len(of_reward) > 20
        assert len(paid(of_reward)) >= 0.98 * len(of_reward), reward
    assert len(some) > 200


@pytest.mark.parametrize("name", ["wrong", "wrong_later", "wrong_last"])
def test_wrong_answers_are_not_paid(name: str) -> None:
    some = rows(name)
    assert {row["text"] for row in paid(some)} <= PAID
    assert len(some) > 200


def _paid_by(rules: str, some: Sequence[Row]) -> list[Row]:
    judge = MathEquivalence(MathEquivalence.Config(rules=rules))  # type: ignore[arg-type]
    return [r for r in some if judge([r["prompt"]], [r["text"]], answer=[r["gold"]]) == [1.0]]


@pytest.mark.parametrize("rules", ["strict", "any_form"])
@pytest.mark.parametrize("name", ["notation", "notation_held", "notation_fresh"])
def test_notations_are_read_and_their_negations_are_not_paid(rules: str, name: str) -> None:
    """Rows of the style form are refused for their form alone, by the strict rules."""
    right = rows(f"right_{name}")
    wrong = [r for r in rows(f"wrong_{name}") if rules == "strict" or r["style"] != "form"]
    assert len(_paid_by(rules, right)) >= 0.97 * len(right)
    assert _paid_by(rules, wrong) == []
    assert min(len(right), len(wrong)) > 150
