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
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("notation", 0.97),
        ("notation_held", 0.97),
        ("notation_fresh", 0.97),
        ("plain_look", 0.98),
        ("plain_held", 0.94),
    ],
)
def test_notations_are_read_and_their_negations_are_not_paid(
    rules: str, name: str, share: float
) -> None:
    """Rows of the style form are refused for their form alone, by the strict rules."""
    right = rows(f"right_{name}")
    wrong = [r for r in rows(f"wrong_{name}") if rules == "strict" or r["style"] != "form"]
    assert len(_paid_by(rules, right)) >= share * len(right)
    assert _paid_by(rules, wrong) == []
    assert min(len(right), len(wrong)) > 150


MARBLES = "Tom has 24 marbles and gives a third of them to his sister. How many does he keep?"


@pytest.mark.parametrize(
    "sentence",
    [
        "Tom keeps 16 marbles",
        "Tom keeps sixteen marbles",
        "Tom gives 8 away, so he keeps 16",
        "Therefore, he is left with 16",
    ],
)
def test_a_sentence_states_its_number(sentence: str) -> None:
    judge = MathEquivalence()
    assert judge([MARBLES], [f"Final answer: {sentence}."], answer=["16"]) == [1.0]
    boxed = rf"\boxed{{\text{{{sentence}}}}}"
    assert judge([MARBLES], [boxed], answer=["16"]) == [1.0]
    assert judge([MARBLES], [boxed], answer=["8"]) == [0.0]


@pytest.mark.parametrize(
    "sentence",
    [
        "Tom doesn't keep 16 marbles",
        "Tom hasn\u2019t 16 marbles",
        "Tom keeps half of 16 marbles",
        "Tom keeps the square of 16",
        "Tom keeps fewer than 16 marbles",
        "Tom keeps 16 of the 24 marbles, or 8",
        "Tom fails to keep 16 marbles",
        "Tom keeps minus 16 marbles",
        "Tom keeps EUR 16",
        "Tom keeps 4 + 16 marbles",
    ],
)
def test_a_sentence_that_denies_or_changes_its_number_states_none(sentence: str) -> None:
    judge = MathEquivalence()
    assert judge([MARBLES], [f"Final answer: {sentence}."], answer=["16"]) == [0.0]
    assert judge([MARBLES], [rf"\boxed{{\text{{{sentence}}}}}"], answer=["16"]) == [0.0]
