"""Answers that an adversary writes in place of the mathematics that was asked for."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from groupwise_verifiable.mathematics import formulas
from groupwise_verifiable.mathematics.attempt import Attempt
from groupwise_verifiable.mathematics.check import equivalent
from groupwise_verifiable.mathematics.reward import MathEquivalence

Written = tuple[Fraction, str]  # a value, and LaTeX with at least one operation that comes to it

_NUMBERS = st.integers(-12, 12).map(lambda number: (Fraction(number), str(number)))
_PRODUCTS = (r"{} \cdot {}", r"{}\times {}", "{}*{}", r"{} \cdot {}")


def _operations(parts: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    def combined(operands: tuple[Written, Written, int]) -> Written:
        (left, above), (right, below), kind = operands
        first, second = (each if each.isdigit() else f"({each})" for each in (above, below))
        if kind == 0:
            return left + right, f"{first} + {second}"
        if kind == 1:
            return left - right, f"{first}-{second}"
        if kind == 2 and right:
            return left / right, rf"\frac{{{above}}}{{{below}}}"
        if kind == 3:
            return left**2, f"{first}^2"
        return left * right, _PRODUCTS[kind % 4].format(first, second)

    return st.tuples(parts, parts, st.integers(0, 7)).map(combined)


FRACTION = re.compile(r"\\frac\{-?[0-9]+\}\{-?[0-9]+\}")
EXPRESSIONS = _operations(st.recursive(_NUMBERS, _operations, max_leaves=3))


@pytest.mark.attack("What is left to compute earns nothing", "random arithmetic for its value")
def test_arithmetic_is_no_value(tries: Callable[[int], None]) -> None:
    @given(EXPRESSIONS)
    def attack(written: Written) -> None:
        value, latex = written
        assume(value.denominator == 1 or not FRACTION.fullmatch(latex))
        tries(1)
        text = rf"\boxed{{{latex}}}"
        assert equivalent(Attempt(str(value), text, prompt="What is it?")) == 0.0, latex

    attack()


# The gold answer and an answer, for a whole number n, and for a fraction in lowest terms a/b.
WHOLE = (("{n}", "{n:,}"), ("{n}", "n = {n}"), ("{n}", "{n}.0"), ("{n}", r"{n}\text{{ m}}"))
REDUCED = (("{a}/{b}", r"\dfrac{{{a}}}{{{b}}}"), (r"\frac{{{a}}}{{{b}}}", "{a}/{b}"))


@pytest.mark.attack("A value earns, however it is spelled", "random numbers in six spellings")
def test_numbers_are_values(tries: Callable[[int], None]) -> None:
    @given(st.integers(-(10**7), 10**7), st.integers(2, 999), st.sampled_from(WHOLE + REDUCED))
    def attack(above: int, below: int, spelling: tuple[str, str]) -> None:
        value = Fraction(above, below)
        assume(spelling in WHOLE or value.denominator > 1)
        tries(1)
        numbers = {"n": above, "a": value.numerator, "b": value.denominator}
        gold, latex = (each.format(**numbers) for each in spelling)
        assert equivalent(Attempt(gold, rf"\boxed{{{latex}}}")) == 1.0, (gold, latex)

    attack()


def _costly() -> list[str]:
    megabyte = 1_000_000
    towers = [rf"\boxed{{{base}^{{9^{{9}}}}}}" for base in range(2, 32)]
    towers += [rf"\boxed{{({base}00000)!}}" for base in range(1, 31)]
    towers += [rf"\boxed{{\binom{{{base}00000000}}{{50000000}}}}" for base in range(1, 11)]
    towers += [rf"\boxed{{(x+y+1)^{{{100 * power}}}}}" for power in range(1, 11)]
    towers += [rf"\boxed{{\int_0^1 \sin(x^x)^{{{power}}}dx}}" for power in range(1, 6)]
    pieces = (
        "$",
        r"\boxed{",
        "answer ",
        "answer $",
        "{",
        r"\boxed{(",
        r"\(",
        "<think>",
        "</think>",
        " ",
    )
    texts = [piece * (megabyte // len(piece)) for piece in pieces]
    texts += [
        rf"\boxed{{{piece * (megabyte // len(piece))}}}"
        for piece in ("9", "(", "9^", "1+", r"\frac")
    ]
    return towers + texts


@pytest.mark.attack(
    "No answer takes long to check", "100 towers, factorials and texts of 1 MB in a call"
)
def test_costly_answers_cost_little(tries: Callable[[int], None]) -> None:
    texts = _costly()
    assert len(texts) == 100
    metrics: dict[str, float] = {}
    tries(len(texts))
    begin = time.monotonic()
    values = MathEquivalence()(
        ["p"] * len(texts), texts, answer=["5"] * len(texts), log_metric=metrics.__setitem__
    )
    assert set(values) == {0.0}
    assert metrics["unchecked"] > 0.5
    assert time.monotonic() - begin < 15  # one each of their deadlines would be four minutes


_PIECES = (
    *r"0123456789xye+-*/^_!|=<>(){}[],.;:%$\ &",
    *(r"\frac", r"\sqrt", r"\boxed{", r"\left", r"\right", r"\text{", r"\int", r"\sum", r"\pm"),
    *(r"\begin{pmatrix}", r"\end{pmatrix}", r"\cup", r"\infty", r"\%", r"^\circ", r"\log", r"\{"),
    *("answer is ", " and ", "\n", "\ud800", "\u2212", "\u0665", "<think>", "</think>", "\x00"),
)


@pytest.mark.attack("No text breaks the reading of mathematics", "random pieces of LaTeX")
def test_random_latex(tries: Callable[[int], None], full: bool) -> None:
    draw = random.Random(0)
    count = 20_000 if full else 100
    soups = ["".join(draw.choices(_PIECES, k=draw.randint(1, 40))) for _ in range(count)]
    boxed = [rf"\boxed{{{soup}}}" for soup in soups]
    tries(2 * count)
    for text in (*soups, *boxed):
        formulas.answer(text), formulas.tidy(text), formulas.expressions(text)
    values = MathEquivalence()(soups, boxed, answer=["5"] * count)
    assert set(values) <= {0.0, 1.0}
    golds = MathEquivalence.Config(rules="any_form")
    assert len(MathEquivalence(golds)(["p"] * count, boxed, answer=["x^2+1"] * count)) == count


# What math-verify takes for units behind a number.
_LETTERS = ("m", "t", "h", "g", "d", "c", "l", "s", "o", "ab", "bc", "st", "th", "cm", "lb", "am")


@pytest.mark.attack("A part of the gold answer earns nothing", "the number before 16 products")
def test_a_part_of_gold_is_no_answer(tries: Callable[[int], None]) -> None:
    golds = [(form.format(letters), letters) for letters in _LETTERS for form in ("3{}", "x=3{}")]
    prompts = [f"Find it by ${'+'.join(letters)}$ and $x$." for _, letters in golds]
    tries(len(golds))
    for prompt, (gold, letters) in zip(prompts, golds, strict=True):
        assert equivalent(Attempt(gold, r"\boxed{3}", prompt)) == 0.0, gold
        assert equivalent(Attempt(gold, rf"\boxed{{3{letters}}}", prompt)) == 1.0, gold


@pytest.mark.attack("The digits of another base earn nothing", "each base for each other")
def test_another_base_is_another_number(tries: Callable[[int], None]) -> None:
    bases = ("2", "3", "8", "{12}")
    pairs = [(gold, answer) for gold in bases for answer in bases]
    tries(len(pairs))
    for gold, answer in pairs:
        attempt = Attempt(f"101_{gold}", rf"\boxed{{101_{answer}}}", "Write 5 in another base.")
        assert equivalent(attempt) == float(gold == answer)
