"""SyGuS: problems that ask for an invariant of a loop, in the language of its competition.

    (synth-inv inv ((x Int) (y Int)))
    (define-fun pre ((x Int) (y Int)) Bool (and (= x 0) (= y 5)))
    (define-fun trans ((x Int) (y Int) (x! Int) (y! Int)) Bool
        (and (< x y) (= x! (+ x 1)) (= y! y)))
    (define-fun post ((x Int) (y Int)) Bool (or (< x y) (= x 5)))
    (inv-constraint inv pre trans post)

Source: the SyGuS-IF standard 2.1, section 4.6.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from groupwise_proofs.theorem import FormatError

Expression: TypeAlias = "str | list[Expression]"
"""A symbol or number, or a list in brackets."""
SIGNS = (
    *("and", "or", "not", "=>", "xor", "=", "distinct", "<", "<=", ">", ">="),
    *("+", "-", "*", "/", "div", "mod", "abs", "ite"),
)
"""What an invariant may be made of, beside variables, numbers, `true` and `false`."""
SORTS = ("Int", "Real", "Bool")
DEPTH = 100
"""Most brackets in each other."""
_TOKEN = re.compile(r"\s+|;[^\n]*|([()]|\"(?:[^\"]|\"\")*\"|[^\s();\"|]+|\|[^|]*\|)")
_NAME = re.compile(r"[A-Za-z_][\w.!$@]*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PARTS = ("the start", "a step", "the end")
"""What an invariant has to hold at, be kept by, and imply."""


@dataclass(frozen=True)
class Problem:
    """What is asked for."""

    name: str
    """Of the invariant."""
    variables: Sequence[tuple[str, str]]
    """Names and sorts."""
    definitions: Sequence[str]
    """Functions in SMT-LIB, the three conditions among them."""
    conditions: Sequence[str]
    """Names of what holds before the loop, of its step, and of what has to hold after it."""

    def script(self, parameters: Sequence[tuple[str, str]], body: str) -> str:
        """In SMT-LIB, three questions that have no answer if this is an invariant."""
        now = " ".join(name for name, _ in self.variables)
        after = " ".join(f"{name}!" for name, _ in self.variables)
        before, step, end = self.conditions
        declared = [
            f"(declare-const {name}{mark} {sort})"
            for mark in ("", "!")
            for name, sort in self.variables
        ]
        own = " ".join(f"({name} {sort})" for name, sort in parameters)
        holds, kept = f"({self.name} {now})", f"({self.name} {after})"
        asked = (
            f"(and ({before} {now}) (not {holds}))",
            f"(and {holds} ({step} {now} {after}) (not {kept}))",
            f"(and {holds} (not ({end} {now})))",
        )
        defined = f"(define-fun {self.name} ({own}) Bool {body})"
        opening = "\n".join([*self.definitions, defined, *declared])
        return SEPARATOR.join(f"{opening}\n(assert {each})\n" for each in asked)


SEPARATOR = "\n;----\n"
"""Between the questions of a script."""


def complaint(answers: Sequence[str]) -> str | None:
    """What is wrong with an invariant, by a solver's answers to its script; None: nothing."""
    for answer, part in zip(answers, _PARTS, strict=True):
        if answer != "unsat":
            unknown = "it is not known whether " if answer != "sat" else ""
            return f"{unknown}it fails at {part}"
    return None


def problem_of(text: str) -> Problem:
    """Raises FormatError."""
    name, variables, conditions = None, [], None
    definitions = list[str]()
    try:
        for each in _read(text):
            match each:
                case ["synth-inv" | "synth-fun", str(own), [*parameters], *_]:
                    name, variables = own, _parameters(parameters)
                case ["define-fun", *_]:
                    definitions.append(_shown(each))
                case ["inv-constraint", str(asked), str(pre), str(trans), str(post)]:
                    conditions = (pre, trans, post) if asked == name else None
    except ValueError as error:
        raise FormatError(f"the problem is not in SyGuS: {error}") from error
    if name is None or conditions is None:
        raise FormatError("the problem has no synth-inv with an inv-constraint after it")
    return Problem(name, variables, definitions, conditions)


def invariant_in(problem: Problem, text: str) -> tuple[Sequence[tuple[str, str]], str]:
    """Parameters and body of a definition of the invariant, or a body in the problem's names.

    Raises ValueError for anything else: what a solver reads is an expression of its variables.
    """
    read = [*_read(text)]
    if len(read) != 1:
        raise ValueError(f"expected one expression, found {len(read)}")
    parameters, body = problem.variables, read[0]
    match body:
        case ["define-fun", str(name), [*own], "Bool", inner]:
            if name != problem.name:
                raise ValueError(f"it defines {name:.40}")
            parameters, body = _parameters(own), inner
            if [sort for _, sort in parameters] != [sort for _, sort in problem.variables]:
                raise ValueError("its parameters are not the problem's")
    _check(body, {name for name, _ in parameters})
    return parameters, _shown(body)


def _check(expression: Expression, variables: Collection[str]) -> None:
    if isinstance(expression, str):
        known = expression in variables or expression in ("true", "false")
        if not known and not _NUMBER.fullmatch(expression):
            raise ValueError(f"the symbol {expression:.40}")
        return
    if not expression or expression[0] not in SIGNS:
        raise ValueError(f"the symbol {_shown(expression[:1]):.40}")
    for each in expression[1:]:
        _check(each, variables)


def _parameters(given: Sequence[Expression]) -> list[tuple[str, str]]:
    found = list[tuple[str, str]]()
    for each in given:
        match each:
            case [str(name), str(sort)] if _NAME.fullmatch(name) and sort in (
                "Int",
                "Real",
                "Bool",
            ):
                found.append((name, sort))
            case _:
                raise ValueError(f"a variable is like (x Int), found {_shown(each):.40}")
    return found


def _read(text: str) -> Iterator[Expression]:
    """The expressions of a text. Raises ValueError."""
    stack, place = list[list[Expression]](), 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"the sign {text[place]!r}")
        place, token = match.end(), match[1]
        if token is None:
            continue
        if token == "(":
            if len(stack) == DEPTH:
                raise ValueError(f"more than {DEPTH} brackets in each other")
            stack.append([])
            continue
        if token == ")" and not stack:
            raise ValueError("a bracket that was not opened")
        done: Expression = stack.pop() if token == ")" else token
        if stack:
            stack[-1].append(done)
        else:
            yield done
    if stack:
        raise ValueError("a bracket that is not closed")


def _shown(expression: Expression) -> str:
    if isinstance(expression, str):
        return expression
    return f"({' '.join(map(_shown, expression))})"
