"""The verdict of a reasoning-gym task's own verifier: what the workers run.

Some verifiers evaluate the answer as Python, by `eval` or by sympy's parser, which is `eval` too:
an answer could run any code. While one of them runs, `eval` reads literals only, and the parser is
given arithmetic and elementary functions only; anything else is refused as if it did not parse.
An unevaluated `Integral` is refused too: the question itself would be a right answer by it.

Imports neither torch nor groupwise, so that a worker starts quickly.
"""

import ast
import builtins
import io
import keyword
import sys
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import reasoning_gym
import sympy
from sympy.parsing.sympy_parser import parse_expr

EVALUATES_LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
PARSES_EXPRESSIONS = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
# A short answer can make these work for ever: an exponent (coin_flip), a count of moves
# (rubiks_cube, rush_hour), the edit distance of two trees (codeio), nested logic.
GROWS = frozenset({"codeio", "coin_flip", "propositional_logic", "rubiks_cube", "rush_hour"})
# These verifiers raise where others give 0.0: at an answer that is not of the right form.
_RAISE_ON_FORM = frozenset({"boxnet", "prime_factorization"})
_FORM_ERRORS = (ValueError, TypeError, AttributeError, KeyError, IndexError)
MUST_ISOLATE = EVALUATES_LITERALS | PARSES_EXPRESSIONS | GROWS

_FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("exp", "log", "ln", "sqrt", "cbrt", "Abs", "E", "I", "pi", "oo"),
        *("Rational", "Integer", "Float"),
    }
)
_OPERATORS = frozenset({"+", "-", "*", "/", "**", "^", "(", ")", ",", "!", "%", "//"})
_TOKENS = frozenset(
    {tokenize.NUMBER, tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.ENCODING}
)
_TAKEN = frozenset(vars(sympy)) | frozenset(vars(builtins)) | frozenset(keyword.kwlist)


@dataclass(frozen=True)
class Attempt:
    """An answer to a row of a task; None when the completion held no answer."""

    task: str
    answer: str | None
    entry: dict[str, Any]


def score(attempt: Attempt) -> float:
    """Returns what the task's verifier gives the answer, most often 0.0 to 1.0."""
    verify = _verifier(attempt.task)
    with _harmless(attempt.task, sys.modules[type(_owner(verify)).__module__]):
        try:
            return float(verify(attempt.answer, attempt.entry))
        except _FORM_ERRORS:
            if attempt.task in _RAISE_ON_FORM:
                return 0.0
            raise


@lru_cache(maxsize=256)
def _verifier(task: str) -> Callable[[str | None, dict[str, Any]], float]:
    verify: Callable[[str | None, dict[str, Any]], float] = reasoning_gym.get_score_answer_fn(task)
    return verify


def _owner(method: Any) -> object:  # a bound method
    return method.__self__


@contextmanager
def _harmless(task: str, module: ModuleType) -> Iterator[None]:
    """Replaces what the verifier's module evaluates with, for the time of one call."""
    if task in EVALUATES_LITERALS:
        with _replaced(module, "eval", ast.literal_eval):
            yield
    elif task in PARSES_EXPRESSIONS:
        with (
            _replaced(sympy, "parse_expr", _parse_mathematics),
            _replaced(module, "parse_expr", _parse_mathematics),
        ):
            yield
    else:
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    absent = object()
    before = vars(module).get(name, absent)
    setattr(module, name, value)
    try:
        yield
    finally:
        if before is absent:
            delattr(module, name)
        else:
            setattr(module, name, before)


def _parse_mathematics(text: str, *arguments: Any, **options: Any) -> Any:
    """Parses as sympy does, but takes only arithmetic, symbols and elementary functions."""
    for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
        if not _allowed(token):
            raise ValueError(f"{token.string!r} is not mathematics")
    return parse_expr(text, *arguments, **options)


def _allowed(token: tokenize.TokenInfo) -> bool:
    if token.type == tokenize.NAME:
        known = token.string in _FUNCTIONS
        return known or ("_" not in token.string and token.string not in _TAKEN)
    if token.type == tokenize.OP:
        return token.string in _OPERATORS
    # "!" alone is an error token before Python 3.12.
    return token.type in _TOKENS or token.string in {"!", " "}
