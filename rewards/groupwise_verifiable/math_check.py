"""Whether a completion's mathematical answer equals the gold one: what the workers run.

Imports neither torch nor groupwise, so that a worker starts quickly.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isinf
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.grader import is_equation, take_last_relation
from sympy import And, Basic, Expr, Rational, Symbol
from sympy.core.function import AppliedUndef

from groupwise_verifiable import math_text
from groupwise_verifiable.math_attempt import Attempt
from groupwise_verifiable.math_cost import is_costly, refuse_costly, refuse_costly_text
from groupwise_verifiable.math_form import (
    evaluated_as_read,
    is_scientific,
    left_to_compute,
    reducible,
)

# math-verify warns once a process that its alarms are off; the deadline is the pool's here.
logging.getLogger("math_verify").setLevel(logging.ERROR)
logging.getLogger("latex2sympy2_extended").setLevel(logging.ERROR)

_LONGEST = 1_000  # characters of an answer, or twice those of the gold answer
_MOST_EXPRESSIONS = 20  # of a prompt
_LATEX = LatexExtractionConfig()
_GOLD = {"trl": (_LATEX, ExprExtractionConfig()), "open_r1": (_LATEX,)}
# Only LaTeX after an anchor ("the answer is") or in a box counts; the box comes first.
_ANSWER = {
    rules: LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True, equations=rules == "open_r1"),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    for rules in ("trl", "open_r1")
}
_SPACES = re.compile(r"\s+(?![0-9])|(?<![0-9])\s+")  # that of 1 1/2 counts
_BASE = re.compile(r"(?<=[0-9])\s*_\s*(?:([0-9])|\{\s*([0-9]{1,3})\s*\})")
_ABOUT_LARGE = re.compile(r"\b(?:hundred|thousand|[mbtr]+illion)s?\b", re.IGNORECASE)
_ABOUT_BASES = re.compile(r"\bbases?\b|\b(?:bi|octal|deci)|_", re.IGNORECASE)
_PERCENT = re.compile(r"\\?%")
_DEGREES = re.compile(
    r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|\\text[a-z]*\s*\{\s*degrees?\s*\}"
    r"|(?<=[0-9])\s+degrees?$"
)
_ABOUT_PERCENT = re.compile(r"%|\bper\s?cent", re.IGNORECASE)
_ABOUT_DEGREES = re.compile(r"degree|°|\\circ|angle|temperature", re.IGNORECASE)


@dataclass(frozen=True)
class _Reading:
    """LaTeX as read, without signs for percent and degrees, and its value."""

    latex: str
    value: Any  # sympy's objects, or the LaTeX itself where math-verify cannot read it
    percent: bool = False
    degrees: bool = False

    @property
    def bracket(self) -> str:
        opening = self.latex.replace(r"\left", "").replace(r"\lbrace", r"\{").replace(" ", "")
        return "" if opening.startswith(r"\{(") else opening[: 2 if opening[:1] == "\\" else 1]


def equivalent(attempt: Attempt) -> float | None:
    """Returns 1.0 when the text answers with gold, else 0.0; None when gold is no mathematics.

    Raises TooCostlyError for answers that would take too long to check.
    """
    if attempt.rules in _ANSWER:
        return _published(attempt)
    names = math_text.names(attempt.prompt)
    golds = _golds(attempt.gold, names)
    if not golds:
        return None
    latex = math_text.answer(attempt.text)
    if latex is None:
        return 0.0
    if _as_written(latex, attempt.gold):
        return 1.0
    latex = math_text.option(latex, attempt.gold)
    forms = {math_text.in_digits(latex)}
    if _ABOUT_LARGE.search(attempt.prompt):  # "How many million": 5 million may be meant as 5
        forms.add(latex)
    return float(any(_answers(form, golds, attempt, names) for form in forms))


def _as_written(latex: str, gold: str) -> bool:
    """Whether an answer is gold letter for letter, be that what math-verify reads or not."""
    written = math_text.formula(gold)
    return written is not None and _SPACES.sub("", latex) == _SPACES.sub("", written)


def _answers(
    latex: str, golds: tuple[_Reading, ...], attempt: Attempt, names: frozenset[str]
) -> bool:
    refuse_costly_text(latex, limit=max(_LONGEST, 2 * len(attempt.gold)))
    strict = attempt.rules == "strict"
    functions = evaluated_as_read(latex)  # reading them can take for ever
    if strict and all(functions - evaluated_as_read(gold.latex) for gold in golds):
        return False
    answer = _read(latex, names.union(*(_names(gold.value) for gold in golds)))
    if answer is None or answer in golds:
        return answer is not None
    if any(isinstance(reading.value, str) for reading in (answer, *golds)):
        return False
    for reading in (answer, *golds):
        refuse_costly(reading.value)
    return any(
        not (strict and _unfinished(gold, answer, attempt.prompt))
        and _right(gold, answer, attempt.prompt)
        and not (strict and _copied(gold, answer, attempt.prompt))
        for gold in golds
    )


def _published(attempt: Attempt) -> float | None:
    """The value of TRL's or open-r1's `accuracy_reward`."""
    mode = "first_match" if attempt.rules == "open_r1" else "any_match"
    golds = _parsed(attempt.gold, extraction_config=_GOLD[attempt.rules], extraction_mode=mode)
    if not golds:
        return None
    config = [_ANSWER[attempt.rules]]
    answers = _parsed(attempt.text, extraction_config=config, extraction_mode="first_match")
    for answer in answers:
        if answer not in golds:
            refuse_costly(answer)
    return float(any(_equal(gold, answer) for gold in golds for answer in answers))


@lru_cache(maxsize=256)
def _golds(gold: str, names: frozenset[str]) -> tuple[_Reading, ...]:
    latex = math_text.formula(gold)
    reading = None if latex is None else _read(math_text.in_digits(latex), names)
    if reading is not None and (not isinstance(reading.value, str) or "\\" in reading.value):
        return (reading,)
    # Prose, with a number or formula somewhere in it.
    parsed = _parsed(gold, extraction_config=_GOLD["trl"])
    return tuple(_Reading("", value) for value in parsed if not isinstance(value, str))


def _read(text: str, names: frozenset[str] = frozenset()) -> _Reading | None:
    """What LaTeX says, None where that is no mathematics.

    names: letters that are no unit behind a number. math-verify takes even the m of 2m for one, and
    the ab of 2ab: 2 would be right.
    """
    tidied = math_text.tidy(text)
    plain = _DEGREES.sub("", _PERCENT.sub("", tidied)).strip()
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=not math_text.ends_in_names(plain, names)),
        boxed_match_priority=0,
    )
    read = _parsed(f"\\boxed{{{plain}}}", extraction_config=[config])
    if not read:
        return None
    value, latex = read[0], read[-1]  # the last is the LaTeX, without units
    percent, degrees = _PERCENT.search(tidied), _DEGREES.search(tidied)
    return _Reading(latex, value, percent is not None, degrees is not None)


def _right(gold: _Reading, answer: _Reading, prompt: str) -> bool:
    """Whether the answer says what gold says, in any form."""
    if answer.degrees and not gold.degrees and not _ABOUT_DEGREES.search(prompt):
        return False
    if {gold.bracket, answer.bracket} in ({"\\{", "("}, {"\\{", "["}):
        return False  # a set is no pair, point or interval
    if len(_bases(gold.latex) | _bases(answer.latex)) > 1 and _bases(gold.latex):
        return False  # math-verify reads the digits alone
    numbers = _numbers_said_equal(answer.value)
    if any(not _equal(numbers[0], number) for number in numbers):
        return False
    values = _meant(gold, answer, prompt)
    # x <= 5 is the interval that ends at 5.
    return any(
        not _differ(gold.value, value) and _equal(gold.value, value, allow_set_relation_comp=True)
        for value in values
    )


def _differ(gold: Any, answer: Any) -> bool:
    """Whether two expressions have other values at some point: no need to simplify.

    math-verify rounds decimals to six places, so that 0.0000001 would be 0.
    """
    if not isinstance(gold, Expr) or not isinstance(answer, Expr):
        return False
    symbols = gold.free_symbols | answer.free_symbols
    if not symbols and not gold.is_Float and not answer.is_Float:
        return False
    if gold.is_Symbol or answer.is_Symbol:  # a name may be a product of letters
        return False
    names = sorted({str(symbol) for symbol in symbols})
    point = {symbol: Rational(names.index(str(symbol)) * 7 + 13, 11) for symbol in symbols}
    here, there = _at(gold, point), _at(answer, point)
    if here is None or there is None or (isinf(abs(here)) and isinf(abs(there))):
        return False
    return abs(here - there) > 1e-5 * min(abs(here), abs(there)) + 1e-15


def _at(expression: Expr, point: dict[Any, Rational]) -> complex | None:
    """The value at a point; None where it is no number: an integral, a function without a name."""
    try:
        return complex(expression.subs(point).evalf(15))
    except OverflowError:
        return complex(inf)
    except (TypeError, ValueError, ArithmeticError):
        return None


def _meant(gold: _Reading, answer: _Reading, prompt: str) -> Iterator[Any]:
    """What the answer may mean beside a gold answer that is a percentage, or is none."""
    value = answer.value
    if gold.percent == answer.percent:
        yield value
    elif gold.percent:  # 50, or 0.5, for 50%
        yield value
        if isinstance(value, Expr):
            yield 100 * value
    else:
        if _ABOUT_PERCENT.search(prompt):
            yield value
        if isinstance(value, Expr) and not _is_over_one(gold.value):
            yield Rational(1, 100) * value


def _bases(latex: str) -> set[str]:
    return {match[1] or match[2] for match in _BASE.finditer(latex)}


def _is_over_one(value: Any) -> bool:
    return bool(value.is_number and abs(value) > 1) if isinstance(value, Expr) else True


def _numbers_said_equal(value: Any) -> list[Any]:
    """The sides without unknowns of an answer that is an equation, as 6 = 5 has two."""
    if not is_equation(value):
        return []
    equations = value.args if isinstance(value, And) else (value,)
    sides = [side for equation in equations for side in equation.args]
    return [side for side in sides if not side.free_symbols and not side.has(AppliedUndef)]


def _unfinished(gold: _Reading, answer: _Reading, prompt: str) -> bool:
    """Whether the answer leaves something to compute that gold does not."""
    latex, value = answer.latex, answer.value
    if not is_equation(gold.value):  # of "x = 2 + 3 = 5" the end counts
        value = take_last_relation(value).rhs if is_equation(value) else value
        latex = latex.rpartition("=")[2].strip() if isinstance(value, Expr) else latex
    if (
        isinstance(value, Expr)
        and _names(value) - _names(gold.value)
        and not isinstance(gold.value, Symbol)
    ):
        return True  # 5x/x for 5
    if _ABOUT_BASES.search(prompt):
        latex = _BASE.sub("", latex)
    asks = math_text.tidy(prompt)
    if is_scientific(latex) and not re.search(r"10\s*\^", asks):
        return False
    if reducible(latex) & reducible(asks) - reducible(gold.latex):
        return True
    return bool(left_to_compute(latex, value) - left_to_compute(gold.latex, gold.value))


def _names(value: Any) -> set[str]:
    return {str(symbol) for symbol in getattr(value, "free_symbols", ())}


def _copied(gold: _Reading, answer: _Reading, prompt: str) -> bool:
    r"""Whether a right answer is an expression of the prompt, as `(x+1)^2` that was to expand."""
    value = answer.value
    if not isinstance(value, Expr) or value.is_Number or value == gold.value:
        return False
    done = value.doit()
    right = take_last_relation(gold.value).rhs if is_equation(gold.value) else gold.value
    same = done == (right.doit() if isinstance(right, Basic) else None)
    return any(
        value == expression or (not same and done == expression.doit())
        for expression in _expressions(prompt)
    )


@lru_cache(maxsize=256)
def _expressions(prompt: str) -> tuple[Expr, ...]:
    readings = [_read(latex) for latex in math_text.expressions(prompt)[:_MOST_EXPRESSIONS]]
    values = [reading.value for reading in readings if reading]
    return tuple(value for value in values if isinstance(value, Expr) and not is_costly(value))


def _parsed(text: str, **options: Any) -> list[Any]:  # math-verify's options
    try:
        return list(parse(text, parsing_timeout=None, raise_on_error=True, **options))
    except MemoryError:
        raise  # the limit, not the mathematics: never a wrong answer
    except Exception:  # text that is no mathematics fails in any way it likes
        return []


def _equal(gold: Any, answer: Any, **options: bool) -> bool:  # sympy objects or strings
    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True, **options))
    except MemoryError:
        raise
    except Exception:  # sympy could not compare them: not shown to be equal
        return False
