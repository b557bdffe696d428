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
# What docs/rewards.md says of one word behind a number, and a bound that the prompt asks for.
WORDS = {
    "Therefore, the answer is 2 pizzas each.",
    "So the result follows.\n\nFinal Answer: 62.5% of the students are boys",
    "Step 3: combine the results.\n\n**Answer: at most 8**",
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


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("rules", ["strict", "any_form"])
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("notation", 0.97),
        ("notation_held", 0.97),
        ("notation_fresh", 0.97),
        ("plain_look", 0.98),
        ("plain_held", 0.94),
        ("dialects", 0.97),
        ("published", 0.96),
        ("everyday", 0.97),
    ],
)
def test_notations_are_read_and_their_negations_are_not_paid(
    rules: str, name: str, share: float
) -> None:
    """Rows of the style form are refused for their form alone, by the strict rules."""
    right = rows(f"right_{name}")
    wrong = [r for r in rows(f"wrong_{name}") if rules == "strict" or r["style"] != "form"]
    assert len(_paid_by(rules, right)) >= share * len(right)
    assert {row["text"] for row in _paid_by(rules, wrong)} <= WORDS
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


BOXES = "A farmer packs 48 eggs in boxes of 6. How many boxes does he need?"
VECTOR = r"Let $A=(2,-1)$ and $B=(5,3)$. Find $\overrightarrow{AB}$."
INTEGRAL = r"Evaluate $\int_0^3 2x\,dx$."
SECTION = "What is the remainder when 73 is divided by 5?"
CAPITAL = "What is the capital of Australia? (A) Sydney (B) Melbourne (C) Canberra (D) Perth"
RACE = "Ann, Ben and Cleo ran a race. Ben beat Ann, and Ann beat Cleo. Who came last?"


@pytest.mark.parametrize(
    ("prompt", "gold", "right", "wrong"),
    [
        (BOXES, "8", "He needs 8 boxes of 6 eggs", "He needs 6 boxes of 8 eggs"),
        (BOXES, "8", "Dividing 48 by 6, we get 8", "Dividing 48 by 8, we get 6"),
        (BOXES, "8", "To pack all 48 eggs he needs 8 boxes", "To pack 48 eggs he lacks 8 boxes"),
        (BOXES, "8", "With 6 eggs in each box, he needs 8 boxes",
         "If it were so, he needs 8 boxes"),
        (BOXES, "8", "8 boxes are needed, since 8 times 6 is 48", "8 boxes are not needed"),
        (SECTION, "3", "The remainder is 3", "The remainder is not 3"),
        (SECTION, "3", r"$73 \equiv 3 \pmod{5}$", r"$73 \equiv 3 \pmod{7}$"),
        (CAPITAL, "C", "Canberra, which is option C", "Canberra, which is not option C"),
        (CAPITAL, "C", "Canberra (C)", "Sydney (C)"),
        (RACE, "Cleo", "Cleo came last", "Cleo did not come last"),
        (RACE, "Cleo", "The last was Cleo", "Ann was faster than Cleo"),
        ("Is 7 prime?", "Yes", "Yes, 7 is prime", "Yes, but 7 is not prime"),
        (VECTOR, r"\begin{pmatrix}3\\4\end{pmatrix}", r"$\overrightarrow{AB}=\binom{3}{4}$",
         r"$\overrightarrow{BA}=\binom{3}{4}$"),
        (VECTOR, r"\begin{pmatrix}3\\4\end{pmatrix}", "$(3 4)^\\top$", "$(4 3)^\\top$"),
        (VECTOR, "(3,4)", r"$3\mathbf{i}+4\mathbf{j}$", r"$3\mathbf{j}+4\mathbf{i}$"),
        (INTEGRAL, "9", r"$\left. x^2 \right|_0^3 = 9$", r"$\left. x^2 \right|_0^3 \ne 9$"),
        ("How many rows are needed at minimum?", "6", "at least 6 rows", "at most 6 rows"),
        ("What is 2+3i+3-2i?", "5+i", "$5+1i$", "$5+2i$"),
        ("When does it end?", "April 6", "on the 6th of April", "not on the 6th of April"),
        ("When does it arrive?", "1:15 p.m.", "13:15", "1:15 a.m."),
        ("Which permutation is it?", "(1 3 2)", "(3 2 1)", "(1 2 3)"),
        ("How many hours?", "2.25", "2 hours 15 minutes", "2 hours 25 minutes"),
        ("By how many degrees does it rise?", "13", "It rises by 13 degrees",
         "It falls by 13 degrees"),
        (r"Solve $\cos x=1$.", r"2\pi k", r"$2\pi n,\ n\in\mathbb{Z}$",
         r"$\pi n,\ n\in\mathbb{Z}$"),
        (r"Simplify $\frac{x^2-9}{x-3}$.", "x+3", r"$x+3,\ x\ne3$", r"$x-3,\ x\ne3$"),
        ("Write $|x|$ by cases.", r"\begin{cases}x & x\ge0\\-x & x<0\end{cases}",
         r"$\begin{cases}-x, & \text{if } x<0\\x, & \text{if } x\geq 0\end{cases}$",
         r"$\begin{cases}-x, & \text{if } x\geq 0\\x, & \text{if } x<0\end{cases}$"),
        (r"Find the inverse of $f(x)=\frac{x-1}{2}$.", "2x+1", "$f^{-1}(x)=2x+1$", "$f(x)=2x+1$"),
        ("A force acts on 2 kg at 3 m/s^2. What is the force?", "6", "6 N", "6 kg"),
        ("Two angles are $55^\\circ$ and $72^\\circ$. Find the third.", "53", "53 degrees",
         "53 radians"),
    ],
)  # fmt: skip
def test_a_reading_pays_no_denial_and_no_other_value(
    prompt: str, gold: str, right: str, wrong: str
) -> None:
    texts = [f"Final answer: {right}.", f"Final answer: {wrong}."]
    for rules in ("strict", "any_form"):
        judge = MathEquivalence(MathEquivalence.Config(rules=rules))  # type: ignore[arg-type]
        assert judge([prompt] * 2, texts, answer=[gold] * 2) == [1.0, 0.0], rules


def test_conditions_of_two_answers_agree() -> None:
    judge = MathEquivalence()
    texts = [rf"\boxed{{x+2,\ x \ne {n}}}" for n in (2, 3)]
    assert judge(["p"] * 2, texts, answer=[r"x+2, x \neq 2"] * 2) == [1.0, 0.0]


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
