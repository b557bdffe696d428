"""`math`, and the rewards of length for right and wrong answers."""

from __future__ import annotations

from math import cos, pi

import pytest

from groupwise.rewards import SampleErrors
from groupwise_verifiable import workers
from groupwise_verifiable.mathematics.length import CosineLength, Length
from groupwise_verifiable.mathematics.reward import MathEquivalence

RIGHT, WRONG = r"\boxed{\frac{2}{6}}", r"\boxed{\frac{1}{2}}"
GOLD = r"\frac{1}{3}"
TOWER, ENDLESS = r"\boxed{9^{9^{9}}}", r"\boxed{\gcd(10^{9000000},3^{9000000})}"


def test_equivalent_answers_are_right() -> None:
    golds = [GOLD, GOLD, "1/2", "$x^2+1$", "1,000", r"\boxed{7}", GOLD, "no mathematics here!"]
    texts = [RIGHT, WRONG, r"so \boxed{0.5}", "The answer is $1+x^2$.", r"\boxed{1000}", "7"]
    texts += ["", r"\boxed{3}"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    # "7" is right, but neither LaTeX nor in a box; the last gold answer is no mathematics.
    expected = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, None]
    assert MathEquivalence()(["p"] * 8, texts, answer=golds) == expected
    solution = MathEquivalence(MathEquivalence.Config(gold="solution"))
    assert solution(["p"] * 8, messages, solution=golds) == expected


def test_only_the_text_after_thinking_counts() -> None:
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


def test_answers_that_have_no_value_are_wrong() -> None:
    texts = [RIGHT, TOWER, WRONG, rf"\boxed{{{'(' * 99}5{')' * 99}}}"]
    texts += [
        r"\boxed{(10^{8})!}",
        rf"\boxed{{{'1+' * 999}1}}",
        ENDLESS,
        rf"\boxed{{{'-' * 900}5}}",
    ]
    for rules in ("strict", "any_form"):
        reward = MathEquivalence(MathEquivalence.Config(rules=rules))
        assert reward(["p"] * 8, texts, answer=[GOLD] * 8) == [1.0, *[0.0] * 7]


@pytest.mark.slow
def test_answers_too_costly_to_check_by_published_rules_are_wrong_and_counted() -> None:
    reward = MathEquivalence(MathEquivalence.Config(rules="trl", timeout=1.0))
    metrics: dict[str, float] = {}
    texts = [RIGHT, TOWER, ENDLESS]
    values = reward(["p"] * 3, texts, answer=[GOLD] * 3, log_metric=metrics.__setitem__)
    assert values == [1.0, 0.0, 0.0]
    assert metrics == {"unchecked": 2 / 3}


@pytest.mark.slow
def test_a_row_whose_gold_answer_is_too_costly_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "_LAST_RESORT", 100)  # processor time ends it on a busy machine
    reward = MathEquivalence(MathEquivalence.Config(rules="trl", timeout=1.0))
    gold = ENDLESS.removeprefix(r"\boxed{").removesuffix("}")
    with pytest.raises(SampleErrors) as caught:
        reward(["p"] * 3, [RIGHT, RIGHT, WRONG], answer=[GOLD, f"${gold}$", GOLD])
    assert list(caught.value.values) == [1.0, None, 0.0]
    reason = "took longer than 1 s of processor time and was stopped on the gold answer, too"
    assert dict(caught.value.errors) == {1: f"{reason}: its row or its checker is broken"}


def test_a_copy_of_a_costly_gold_answer_is_right() -> None:
    """Equal towers of powers are compared without being evaluated."""
    assert MathEquivalence()(["p"] * 2, [TOWER, RIGHT], answer=["9^{9^{9}}"] * 2) == [1.0, 0.0]


def test_length_compares_the_completions_of_one_group() -> None:
    prompts, groups = ["one prompt, drawn thrice"] * 9, [3] * 3 + [1] * 4 + [8] * 2
    texts = [RIGHT, RIGHT, WRONG, WRONG, RIGHT, WRONG, RIGHT, RIGHT, WRONG]
    lengths = [10, 20, 30, 100, 150, 200, 120, 5, 5]
    ids = [[0] * length for length in lengths]
    values = Length()(prompts, texts, completion_ids=ids, answer=[GOLD] * 9, groups=groups)
    # 0.5 - (length - min) / (max - min) per group, at most 0 for wrong answers, 0 if all lengths
    # are equal. Over the whole batch the three short ones would all be near 0.5.
    assert values == pytest.approx([0.5, 0.0, -0.5, 0.0, 0.0, -0.5, 0.3, 0.0, 0.0])


def test_length_in_characters_and_without_gold() -> None:
    reward = Length(Length.Config(unit="characters", gold="solution"))
    texts = [RIGHT, RIGHT + "  ", RIGHT + "    "]
    columns = {"solution": [GOLD] * 3, "groups": [0] * 3}
    assert reward(["p"] * 3, texts, **columns) == [0.5, 0.0, -0.5]
    assert reward(["p"], [RIGHT], solution=["no mathematics here!"], groups=[0]) == [None]


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


def test_an_unchecked_answer_has_the_length_reward_of_a_wrong_one() -> None:
    columns = {
        "completion_ids": [[0] * 10, [0] * 10, [0] * 20],
        "answer": [GOLD] * 3,
        "groups": [0] * 3,
    }
    for reward, expected in (
        (Length(Length.Config(rules="trl")), [0.5, 0.0, -0.5]),
        (CosineLength(CosineLength.Config(max_length=20, rules="trl")), [0.75, -0.75, -0.5]),
    ):
        metrics: dict[str, float] = {}
        texts = [RIGHT, TOWER, WRONG]
        assert reward(["p"] * 3, texts, **columns, log_metric=metrics.__setitem__) == expected
        assert metrics == {"unchecked": 1 / 3}


def test_rules_apply_to_the_rewards_of_length() -> None:
    columns = {"completion_ids": [[0], [0] * 2], "answer": ["5"] * 2, "groups": [0, 0]}
    texts = [r"\boxed{2+3}", r"\boxed{5}"]
    assert Length()(["p"] * 2, texts, **columns) == [0.0, -0.5]
    assert Length(Length.Config(rules="any_form"))(["p"] * 2, texts, **columns) == [0.5, -0.5]
    cosine = CosineLength(CosineLength.Config(max_length=1, rules="trl"))
    assert cosine(["p"] * 2, texts, **columns) == [0.5, 0.5]
