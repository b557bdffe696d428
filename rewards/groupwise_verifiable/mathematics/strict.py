"""The strict rules beyond equality: nothing left to compute, nothing copied from the prompt."""

import re
from functools import lru_cache

from math_verify.grader import is_equation, take_last_relation
from sympy import Basic, Expr, Symbol

from groupwise_verifiable.mathematics import formulas
from groupwise_verifiable.mathematics.cost import is_costly
from groupwise_verifiable.mathematics.form import is_scientific, left_to_compute, reducible
from groupwise_verifiable.mathematics.reading import BASE, Reading, names_in, read

_MOST_EXPRESSIONS = 20  # of a prompt
_ABOUT_BASES = re.compile(r"\bbases?\b|\b(?:bi|octal|deci)|_", re.IGNORECASE)


def unfinished(gold: Reading, answer: Reading, prompt: str) -> bool:
    """Returns whether the answer leaves something to compute that gold does not."""
    latex, value = answer.latex, answer.value
    if not is_equation(gold.value):  # for "x = 2 + 3 = 5" the last side counts
        value = take_last_relation(value).rhs if is_equation(value) else value
        latex = latex.rpartition("=")[2].strip() if isinstance(value, Expr) else latex
    if (
        isinstance(value, Expr)
        and names_in(value) - names_in(gold.value)
        and not isinstance(gold.value, Symbol)
    ):
        return True  # 5x/x for 5
    if _ABOUT_BASES.search(prompt):
        latex = BASE.sub("", latex)
    asks = formulas.tidy(prompt)
    if is_scientific(latex) and not re.search(r"10\s*\^", asks):
        return False
    if reducible(latex) & reducible(asks) - reducible(gold.latex):
        return True
    return bool(left_to_compute(latex, value) - left_to_compute(gold.latex, gold.value))


def copied(gold: Reading, answer: Reading, prompt: str) -> bool:
    r"""Returns whether the answer is copied from the prompt, as `(x+1)^2` that was to expand."""
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
    readings = [read(latex) for latex in formulas.expressions(prompt)[:_MOST_EXPRESSIONS]]
    values = [reading.value for reading in readings if reading]
    return tuple(value for value in values if isinstance(value, Expr) and not is_costly(value))
