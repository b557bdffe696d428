"""Answers that try to earn the reward for mathematics without solving the problem."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.effort import Effort

from groupwise_verifiable.mathematics.attempt import Attempt
from groupwise_verifiable.mathematics.check import equivalent
from groupwise_verifiable.mathematics.reward import MathEquivalence
from groupwise_verifiable.reading.answers import gold_answer, stated_answer
from groupwise_verifiable.reading.grammar import read
from groupwise_verifiable.reading.question import read_question

Expression = tuple[Fraction, str]  # a value, and LaTeX with an operation that has this value

_NUMBERS = st.integers(-12, 12).map(lambda number: (Fraction(number), str(number)))
_PRODUCTS = (r"{} \cdot {}", r"{}\times {}", "{}*{}", r"{} \cdot {}")


def _operations(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def combine(operands: tuple[Expression, Expression, int]) -> Expression:
        (left, left_latex), (right, right_latex), kind = operands
        first, second = (
            latex if latex.isdigit() else f"({latex})" for latex in (left_latex, right_latex)
        )
        if kind == 0:
            return left + right, f"{first} + {second}"
        if kind == 1:
            return left - right, f"{first}-{second}"
        if kind == 2 and right:
            return left / right, rf"\frac{{{left_latex}}}{{{right_latex}}}"
        if kind == 3:
            return left**2, f"{first}^2"
        return left * right, _PRODUCTS[kind % 4].format(first, second)

    return st.tuples(parts, parts, st.integers(0, 7)).map(combine)


FRACTION = re.compile(r"\\frac\{-?[0-9]+\}\{-?[0-9]+\}")
EXPRESSIONS = _operations(st.recursive(_NUMBERS, _operations, max_leaves=3))


@pytest.mark.attack(
    "An expression that is not computed earns nothing", "random arithmetic instead of its value"
)
def test_expressions_that_are_not_computed_earn_nothing(tries: Callable[[int], None]) -> None:
    @given(EXPRESSIONS)
    def attack(expression: Expression) -> None:
        value, latex = expression
        assume(value.denominator == 1 or not FRACTION.fullmatch(latex))
        tries(1)
        text = rf"\boxed{{{latex}}}"
        assert equivalent(Attempt(str(value), text, prompt="What is it?")) == 0.0, latex

    attack()


# (gold answer, answer) for an integer n, and for a fraction a/b in lowest terms.
INTEGERS = (("{n}", "{n:,}"), ("{n}", "n = {n}"), ("{n}", "{n}.0"), ("{n}", r"{n}\text{{ m}}"))
FRACTIONS = (("{a}/{b}", r"\dfrac{{{a}}}{{{b}}}"), (r"\frac{{{a}}}{{{b}}}", "{a}/{b}"))


@pytest.mark.attack("A right value earns 1 in any notation", "random numbers in six notations")
def test_right_numbers_earn_1_in_any_notation(tries: Callable[[int], None]) -> None:
    @given(st.integers(-(10**7), 10**7), st.integers(2, 999), st.sampled_from(INTEGERS + FRACTIONS))
    def attack(numerator: int, denominator: int, notation: tuple[str, str]) -> None:
        value = Fraction(numerator, denominator)
        assume(notation in INTEGERS or value.denominator > 1)
        tries(1)
        numbers = {"n": numerator, "a": value.numerator, "b": value.denominator}
        gold, latex = (form.format(**numbers) for form in notation)
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
    "No answer takes long to check", "100 power towers, factorials and texts of 1 MB in one call"
)
def test_costly_answers_are_checked_within_their_deadline(tries: Callable[[int], None]) -> None:
    texts = _costly()
    assert len(texts) == 100
    tries(2 * len(texts))
    for rules in ("strict", "any_form"):
        reward = MathEquivalence(MathEquivalence.Config(rules=rules))
        with Effort() as effort:
            values = reward(["p"] * len(texts), texts, answer=["5"] * len(texts))
        assert set(values) == {0.0}
        assert effort.wall < 5, rules


_PIECES = (
    *r"0123456789xye+-*/^_!|=<>(){}[],.;:%$\ &",
    *(r"\frac", r"\sqrt", r"\boxed{", r"\left", r"\right", r"\text{", r"\int", r"\sum", r"\pm"),
    *(r"\begin{pmatrix}", r"\end{pmatrix}", r"\cup", r"\infty", r"\%", r"^\circ", r"\log", r"\{"),
    *("answer is ", " and ", "\n", "\ud800", "\u2212", "\u0665", "<think>", "</think>", "\x00"),
)


@pytest.mark.attack("No text makes the parser of mathematics fail", "random pieces of LaTeX")
def test_random_latex_is_parsed_without_an_error(tries: Callable[[int], None], full: bool) -> None:
    draw = random.Random(0)
    count = 20_000 if full else 100
    random_texts = ["".join(draw.choices(_PIECES, k=draw.randint(1, 40))) for _ in range(count)]
    boxed = [rf"\boxed{{{text}}}" for text in random_texts]
    tries(2 * count)
    for text in (*random_texts, *boxed):
        stated_answer(text), gold_answer(text), read(text), read_question(text)
    values = MathEquivalence()(random_texts, boxed, answer=["5"] * count)
    assert set(values) <= {0.0, 1.0}
    golds = MathEquivalence.Config(rules="any_form")
    assert len(MathEquivalence(golds)(["p"] * count, boxed, answer=["x^2+1"] * count)) == count


# Letters that math-verify takes for units after a number.
_LETTERS = ("m", "t", "h", "g", "d", "c", "l", "s", "o", "ab", "bc", "st", "th", "cm", "lb", "am")


@pytest.mark.attack(
    "A part of the gold answer earns nothing", "the number without its letters, for 16 products"
)
def test_a_part_of_the_gold_answer_earns_nothing(tries: Callable[[int], None]) -> None:
    golds = [(form.format(letters), letters) for letters in _LETTERS for form in ("3{}", "x=3{}")]
    prompts = [f"Find it by ${'+'.join(letters)}$ and $x$." for _, letters in golds]
    tries(len(golds))
    for prompt, (gold, letters) in zip(prompts, golds, strict=True):
        assert equivalent(Attempt(gold, r"\boxed{3}", prompt)) == 0.0, gold
        assert equivalent(Attempt(gold, rf"\boxed{{3{letters}}}", prompt)) == 1.0, gold


@pytest.mark.attack("The same digits in another base earn nothing", "every pair of four bases")
def test_the_same_digits_in_another_base_earn_nothing(tries: Callable[[int], None]) -> None:
    bases = ("2", "3", "8", "{12}")
    pairs = [(gold, answer) for gold in bases for answer in bases]
    tries(len(pairs))
    for gold, answer in pairs:
        attempt = Attempt(f"101_{gold}", rf"\boxed{{101_{answer}}}", "Write 5 in another base.")
        assert equivalent(attempt) == float(gold == answer)
