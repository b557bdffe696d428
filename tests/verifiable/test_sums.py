"""`sum_steps`: right steps of computing a sum are rewarded once, all others get 0."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise_verifiable.mathematics.sums import (
    Equation,
    SumSteps,
    equations_of,
    right_steps,
    terms_of,
)

PROMPT = "State the final answer to the following arithmetic problem: 33 + 42 - 12 ="


def rewards(text: str, prompt: Any = PROMPT, **config: Any) -> dict[int, float] | None:
    """Rewards by the index of the character that ends a step; the end token's is len(text)."""
    ends = [*range(1, len(text) + 1), len(text)]
    reward = SumSteps(SumSteps.Config(**config))
    (values,) = reward([prompt], [text], character_ends=[ends])
    return None if values is None else {n: v for n, v in enumerate(values) if v is not None}


@pytest.mark.parametrize(
    ("prompt", "terms"),
    [
        (PROMPT, [33, 42, -12]),
        ("520 + -265 - 629 + 415 =", [520, -265, -629, 415]),
        ("-5 + 55 - -22", [-5, 55, 22]),
        ("7 \u2212 3", [7, -3]),
        ("From pages 2-3: what is 4 + 5 - 6?", [4, 5, -6]),
        *((text, []) for text in ("", "7", "3 * 4 + 5", "1 + 2 * 3", "1 + 2.5", "1 + 2 - (3)")),
    ],
)
def test_the_sum_of_a_prompt(prompt: str, terms: list[int]) -> None:
    assert terms_of(prompt) == terms
    assert (rewards("1", prompt) is None) == (len(terms) < 2)
    chat = [{"role": "system", "content": "1 + 1"}, {"role": "user", "content": prompt}]
    if terms:
        assert rewards("", chat) == {0: 0.0}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        # Right steps in any order and form; a step ends at the character after its last digit.
        ("33+42=75\n75-12=63\n", {8: 0.5, 17: 0.5}),
        ("33 + 42 = 75, so 75 \u2212 12 = 63.", {12: 0.5, 29: 0.5}),
        ("42-12=30\n30+33=63", {8: 0.5, 17: 0.5}),
        ("-12+33=21\n21+42=63", {9: 0.5, 18: 0.5}),
        ("1. 33+42=75\n2. 75-12=63", {11: 0.5, 23: 0.5}),
        # Wrong steps, and steps that use their results.
        ("33+42=76\n76-12=64", {8: 0.0, 17: 0.0}),
        ("33+42=75\n75+12=87", {8: 0.5, 17: 0.0}),
        # Repeated steps, adding 0, other numbers, numbers that have been used.
        ("33+42=75\n33+42=75\n75-12=63", {8: 0.5, 17: 0.0, 26: 0.5}),
        ("1+1=2\n33+0=33\n", {5: 0.0, 13: 0.0, 14: 0.0}),
        ("33+42=75\n33-12=21\n", {8: 0.5, 17: 0.0, 18: 0.0}),
        ("33+33=66\n", {8: 0.0, 9: 0.0}),
        # No steps or too few: the end counts as a step with 0.
        ("", {0: 0.0}),
        ("63", {2: 0.0}),
        ("33+42=75\n", {8: 0.5, 9: 0.0}),
        # Parts of longer expressions are not steps.
        ("33+42=75-12=63", {14: 0.0}),
        ("33+42-12=63", {11: 0.0}),
        ("2*33+42=75", {10: 0.0}),
        ("33+42=75.5", {10: 0.0}),
        ("x33+42=75", {9: 0.0}),
    ],
)
def test_steps(text: str, values: dict[int, float]) -> None:
    assert rewards(text) == values


def test_inside_counts_only_steps_within_a_tag() -> None:
    text = "<think>\n33+42=75\n75-12=63</think>75-12=63"
    assert rewards(text, inside="think") == {16: 0.5, 32: 0.5}
    assert rewards("33+42=75\n75-12=63", inside="think") == {17: 0.0}


def test_the_number_of_steps_is_logged() -> None:
    logged = {}
    texts = ["33+42=1\n1+1=2", "none"]
    ends = [list(range(1, len(text) + 1)) for text in texts]
    SumSteps()([PROMPT] * 2, texts, character_ends=ends, log_metric=logged.__setitem__)
    assert logged == {"steps": 1.0}


@settings(max_examples=40)
@given(
    st.lists(st.integers(-9, 9), min_size=2, max_size=5),
    st.lists(st.tuples(*[st.integers(-30, 30)] * 2, st.integers(-1, 1)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_each_right_step_is_rewarded_at_most_once(
    terms: list[int], others: list[tuple[int, int, int]], random: Any
) -> None:
    """At most len(terms) - 1 steps are right; any order of adding the terms is right."""
    remaining, proof = list(terms), []
    while len(remaining) > 1:
        random.shuffle(remaining)
        one, other = remaining.pop(), remaining.pop()
        remaining.append(one + other)
        proof.append(Equation(first=one, second=other, result=one + other, end=None))
    assert right_steps(terms, proof) == [True] * len(proof)
    noise = [Equation(first=a, second=b, result=a + b + error, end=None) for a, b, error in others]
    mixed = [*noise, *proof, *noise]
    assert sum(right_steps(terms, mixed)) <= len(terms) - 1


@pytest.mark.parametrize("text", ["9" * 50_000, "1+" * 25_000, "1+1=" * 12_000, "-" * 50_000])
@pytest.mark.timeout(20)
def test_equations_of_any_text_are_found_in_linear_time(text: str) -> None:
    assert sum(1 for _ in equations_of(text, 0, len(text), None)) <= 1
    terms_of(text)
