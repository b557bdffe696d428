"""Mathematical answers, and the lengths of right and wrong ones."""

from __future__ import annotations

from math import cos, pi

import pytest

from groupwise.rewards import SampleErrors
from groupwise_verifiable.length import CosineLength, Length
from groupwise_verifiable.math import MathEquivalence

RIGHT, WRONG = r"\boxed{\frac{2}{6}}", r"\boxed{\frac{1}{2}}"
GOLD = r"\frac{1}{3}"


def test_equal_as_mathematics() -> None:
    golds = [GOLD, GOLD, "1/2", "$x^2+1$", "1,000", r"\boxed{7}", GOLD, "no mathematics here!"]
    texts = [RIGHT, WRONG, r"so \boxed{0.5}", "The answer is $1+x^2$.", r"\boxed{1000}", "7"]
    texts += ["", r"\boxed{3}"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    # "7" is right, but neither LaTeX nor in a box; the last gold answer has nothing to compare.
    expected = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, None]
    assert MathEquivalence()(["p"] * 8, texts, answer=golds) == expected
    solution = MathEquivalence(MathEquivalence.Config(gold="solution"))
    assert solution(["p"] * 8, messages, solution=golds) == expected


def test_only_what_follows_the_thinking_counts() -> None:
    reward = MathEquivalence(MathEquivalence.Config(after="</think>"))
    texts = [
        f"<think>{WRONG}</think>{RIGHT}",
        f"<think>{RIGHT}</think>{WRONG}",
        f"{RIGHT}</think>no, </think>{WRONG}",
        f"<think>{RIGHT}",
        "</think>" + RIGHT,
    ]
    golds = [GOLD] * 4 + ["no mathematics here!"]
    assert reward(["p"] * 5, texts, answer=golds) == [1.0, 0.0, 0.0, 0.0, None]


def test_what_never_ends_is_stopped_and_named() -> None:
    reward = MathEquivalence(MathEquivalence.Config(timeout=1.5))
    with pytest.raises(SampleErrors) as caught:
        reward(["p"] * 3, [RIGHT, r"\boxed{(10^{8})!}", WRONG], answer=[GOLD] * 3)
    assert list(caught.value.values) == [1.0, None, 0.0]
    assert dict(caught.value.errors) == {1: "took longer than 1.5 s and was stopped"}


def test_length_compares_the_completions_of_one_prompt() -> None:
    prompts = ["short"] * 3 + ["long"] * 4 + ["even"] * 2
    texts = [RIGHT, RIGHT, WRONG, WRONG, RIGHT, WRONG, RIGHT, RIGHT, WRONG]
    lengths = [10, 20, 30, 100, 150, 200, 120, 5, 5]
    ids = [[0] * length for length in lengths]
    values = Length()(prompts, texts, completion_ids=ids, answer=[GOLD] * 9)
    # 0.5 - (length - min) / (max - min), at most 0 for wrong ones, 0 without a spread. Over the
    # whole batch the three short ones would all be near 0.5.
    assert values == pytest.approx([0.5, 0.0, -0.5, 0.0, 0.0, -0.5, 0.3, 0.0, 0.0])


def test_length_in_characters_and_without_gold() -> None:
    reward = Length(Length.Config(unit="characters", gold="solution"))
    texts = [RIGHT, RIGHT + "  ", RIGHT + "    "]
    assert reward(["p"] * 3, texts, solution=[GOLD] * 3) == [0.5, 0.0, -0.5]
    assert reward(["p"], [RIGHT], solution=["no mathematics here!"]) == [None]


def test_cosine_length() -> None:
    reward = CosineLength(CosineLength.Config(max_length=100))
    texts = [RIGHT, RIGHT, RIGHT, RIGHT, WRONG, WRONG, WRONG, RIGHT, RIGHT]
    lengths = [0, 50, 100, 250, 0, 50, 300, 25, 25]
    golds = [GOLD] * 8 + ["no mathematics here!"]
    ids = [[0] * length for length in lengths]
    values = reward(["p"] * 9, texts, completion_ids=ids, answer=golds)
    quarter = 0.5 + 0.25 * (1 + cos(pi / 4))
    assert values[-1] is None
    assert values[:-1] == pytest.approx([1.0, 0.75, 0.5, 0.5, -1.0, -0.75, -0.5, quarter])


def test_a_failed_check_has_no_length_reward_either() -> None:
    reward = CosineLength(CosineLength.Config(max_length=100, timeout=1.0))
    with pytest.raises(SampleErrors) as caught:
        reward(["p"] * 2, [RIGHT, r"\boxed{(10^{8})!}"], completion_ids=[[], []], answer=[GOLD] * 2)
    assert list(caught.value.values) == [1.0, None]
    assert list(caught.value.errors) == [1]
