"""LaTeX as parsed by math-verify, with what it ignores: percent, degrees, bases, brackets."""

import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

from groupwise_verifiable.mathematics import formulas

# math-verify warns once per process that its timeouts are off; here the worker pool has one.
logging.getLogger("math_verify").setLevel(logging.ERROR)
logging.getLogger("latex2sympy2_extended").setLevel(logging.ERROR)

LATEX_OR_PLAIN = (LatexExtractionConfig(), ExprExtractionConfig())
BASE = re.compile(r"(?<=[0-9])\s*_\s*(?:([0-9])|\{\s*([0-9]{1,3})\s*\})")  # of 101_2
_PERCENT = re.compile(r"\\?%")
_DEGREES = re.compile(
    r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|\\text[a-z]*\s*\{\s*degrees?\s*\}"
    r"|(?<=[0-9])\s+degrees?$"
)


@dataclass(frozen=True)
class Reading:
    """LaTeX without signs for percent and degrees, its value, and whether it had such signs."""

    latex: str
    value: Any  # sympy objects, or the LaTeX itself where math-verify cannot read it
    percent: bool = False
    degrees: bool = False

    @property
    def bracket(self) -> str:
        """The bracket that the LaTeX begins with, or ""."""
        opening = self.latex.replace(r"\left", "").replace(r"\lbrace", r"\{").replace(" ", "")
        return "" if opening.startswith(r"\{(") else opening[: 2 if opening[:1] == "\\" else 1]

    @property
    def bases(self) -> set[str]:
        """The bases of its numbers, as in 101_2."""
        return {match[1] or match[2] for match in BASE.finditer(self.latex)}


def read(text: str, names: frozenset[str] = frozenset()) -> Reading | None:
    """Returns the reading of LaTeX, None if it is no mathematics.

    names: letters that are variables, not units, after a number. math-verify removes the m of 2m,
    and even the ab of 2ab, as units: 2 would be a right answer for 2ab.
    """
    tidied = formulas.tidy(text)
    plain = _DEGREES.sub("", _PERCENT.sub("", tidied)).strip()
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=not formulas.ends_in_names(plain, names)),
        boxed_match_priority=0,
    )
    readings = parsed(f"\\boxed{{{plain}}}", extraction_config=[config])
    if not readings:
        return None
    value, latex = readings[0], readings[-1]  # the last is the LaTeX, without units
    percent, degrees = _PERCENT.search(tidied), _DEGREES.search(tidied)
    return Reading(latex, value, percent is not None, degrees is not None)


@lru_cache(maxsize=256)
def read_gold(gold: str, names: frozenset[str]) -> tuple[Reading, ...]:
    """Returns the readings of a gold answer; () if it has no mathematics."""
    latex = formulas.formula(gold)
    reading = None if latex is None else read(formulas.in_digits(latex), names)
    if reading is not None and (not isinstance(reading.value, str) or "\\" in reading.value):
        return (reading,)
    # Prose that contains a number or formula.
    values = parsed(gold, extraction_config=LATEX_OR_PLAIN)
    return tuple(Reading("", value) for value in values if not isinstance(value, str))


def parsed(text: str, **options: Any) -> list[Any]:  # math-verify's options
    """Returns the values that math-verify finds in a text, sympy objects or LaTeX."""
    try:
        return list(parse(text, parsing_timeout=None, raise_on_error=True, **options))
    except MemoryError:
        raise  # the worker's memory limit, which does not make an answer wrong
    except Exception:  # text that is no mathematics raises all kinds of errors
        return []


def names_in(value: Any) -> set[str]:
    """Returns the names of a value's unknowns."""
    return {str(symbol) for symbol in getattr(value, "free_symbols", ())}
