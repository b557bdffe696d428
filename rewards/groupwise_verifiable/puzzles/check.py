"""Scoring an answer by a reasoning-gym task's own verifier; runs in the workers.

Some verifiers evaluate the answer as Python, by `eval` or by sympy's parser (which uses `eval`), so
an answer could run any code. While one of them runs, `eval` reads literals only, and the parser
accepts arithmetic and elementary functions only; anything else fails as if it did not parse. An
unevaluated `Integral` is refused, too: with it, the question itself would be a right answer.

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
from contextlib import contextmanager, suppress
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
# Metadata keys of one right answer, for tasks with many right answers.
_EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")


@dataclass(frozen=True)
class Attempt:
    """An answer to a row of a task; None if the completion has no answer.

    home: the module that registers the task with reasoning-gym.
    """

    task: str
    answer: str | None
    entry: dict[str, Any]
    home: str = "reasoning_gym"

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.task, self.answer, self.entry, self.home)


def _received(task: str, answer: str | None, entry: dict[str, Any], home: str) -> Attempt:
    """An attempt in the worker, which imports the task's module before the attempt's time begins:
    it may be a user's, and slow."""
    with suppress(Exception):  # the check raises it again, and so names its row
        importlib.import_module(home)
    return Attempt(task, answer, entry, home)


def score(attempt: Attempt) -> float:
    """Returns the score of the task's verifier, 0.0 to 1.0.

    0.0 if there is no answer, if one of our rules says that it is wrong, and if the verifier's
    score is NaN or not in [0, 1], as `calendar_arithmetic`'s for some gold answers of -1.
    """
    if attempt.answer is None or not admissible(attempt.task, attempt.answer, attempt.entry):
        return 0.0
    verify = _verifier(attempt.task, attempt.home)
    with _without_eval(attempt.task, sys.modules[type(_owner(verify)).__module__]):
        value = float(verify(attempt.answer, attempt.entry))
    return value if 0.0 <= value <= 1.0 else 0.0


def on_gold(attempt: Attempt) -> Attempt:
    """Returns the attempt with the row's gold answer; "" where the row has none."""
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
def _without_eval(task: str, module: ModuleType) -> Iterator[None]:
    """The context in which the verifier's module has restricted versions of eval and parser."""
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
    """sympy's parse_expr, restricted to arithmetic, symbols and elementary functions."""
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
