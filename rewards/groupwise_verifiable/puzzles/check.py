"""The verdict of a reasoning-gym task's own verifier: what the workers run.

Some verifiers evaluate the answer as Python, by `eval` or by sympy's parser, which is `eval` too:
an answer could run any code. While one of them runs, `eval` reads literals only, and the parser is
given arithmetic and elementary functions only; anything else is refused as if it did not parse.
An unevaluated `Integral` is refused too: the question itself would be a right answer by it.

Imports neither torch nor groupwise, so that a worker starts quickly.
"""

import ast
import builtins
import importlib
import io
import json
import keyword
import sys
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any

import reasoning_gym
import sympy
from sympy.parsing.sympy_parser import parse_expr

from groupwise_verifiable.puzzles.rules import admissible

_EVALUATES_LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
_PARSES_EXPRESSIONS = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)

_FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("exp", "log", "ln", "sqrt", "cbrt", "Abs", "E", "I", "pi"),
        *("Rational", "Integer", "Float"),
    }
)
_OPERATORS = frozenset({"+", "-", "*", "/", "**", "^", "(", ")", ",", "!", "%", "//"})
_TOKENS = frozenset(
    {tokenize.NUMBER, tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.ENCODING}
)
_TAKEN = frozenset(vars(sympy)) | frozenset(vars(builtins)) | frozenset(keyword.kwlist)
# Where a row whose task has many right answers keeps one of them.
_EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")


@dataclass(frozen=True)
class Attempt:
    """An answer to a row of a task; None when the completion held no answer.

    home: the module that makes the task known to reasoning-gym.
    """

    task: str
    answer: str | None
    entry: dict[str, Any]
    home: str = "reasoning_gym"


def score(attempt: Attempt) -> float:
    """Returns what the task's verifier gives the answer, 0.0 to 1.0.

    0.0 where there is no answer, where a rule of ours says that it is wrong, and where the verifier
    gives what is no share: not a number, or above 1, as `calendar_arithmetic` for some gold of -1.
    """
    if attempt.answer is None or not admissible(attempt.task, attempt.answer, attempt.entry):
        return 0.0
    verify = _verifier(attempt.task, attempt.home)
    with _harmless(attempt.task, sys.modules[type(_owner(verify)).__module__]):
        value = float(verify(attempt.answer, attempt.entry))
    return value if 0.0 <= value <= 1.0 else 0.0


def on_gold(attempt: Attempt) -> Attempt:
    """Returns the attempt with its row's own answer, an empty one where the row has none."""
    metadata = attempt.entry["metadata"]
    examples = [attempt.entry["answer"], *(metadata.get(name) for name in _EXAMPLES)]
    gold = next((example for example in examples if example is not None), "")
    return replace(attempt, answer=gold if isinstance(gold, str) else json.dumps(gold))


@lru_cache(maxsize=256)
def _verifier(task: str, home: str) -> Callable[[str | None, dict[str, Any]], float]:
    importlib.import_module(home)
    verify: Callable[[str | None, dict[str, Any]], float] = reasoning_gym.get_score_answer_fn(task)
    return verify


def _owner(method: Any) -> object:  # a bound method
    return method.__self__


@contextmanager
def _harmless(task: str, module: ModuleType) -> Iterator[None]:
    """Replaces what the verifier's module evaluates with, for the time of one call."""
    if task in _EVALUATES_LITERALS:
        with _replaced(module, "eval", ast.literal_eval):
            yield
    elif task in _PARSES_EXPRESSIONS:
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
