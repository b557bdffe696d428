"""Assertions: tests that are code, and what they need of a program."""

import ast
import builtins
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from groupwise_code.problem import Case, FormatError, Testing
from groupwise_code.values import column


def listed(row: Mapping[str, Any]) -> Iterable[Case]:
    """MBPP: `test_list`, asserts of which each is a case; `test_setup_code`, `test_imports`."""
    return each_of(column(row, "test_list"), row)


def each_of(asserts: Sequence[str], row: Mapping[str, Any]) -> Iterable[Case]:
    """Asserts, after the row's imports and setup code."""
    opening = "\n".join([*(row.get("test_imports") or []), row.get("test_setup_code") or ""])
    for each in asserts:
        yield testing(f"{opening}\n{each}\n")


def module(row: Mapping[str, Any]) -> Iterable[Case]:
    """HumanEval: `test` defines `check(candidate)`, which is called with `entry_point`. KodCode:
    functions `test_...`, each of which is called."""
    data = row["test"]
    if not isinstance(data, str):
        raise FormatError("the column 'test' is not code")
    functions = [each for each in _parsed(data).body if isinstance(each, ast.FunctionDef)]
    if entry := row.get("entry_point"):
        if "check" not in [each.name for each in functions]:
            raise FormatError("the column 'test' defines no function check(candidate)")
        yield testing(f"{data}\ncheck({entry})\n")
        return
    calls = [each for each in functions if each.name.startswith("test")]
    if wrong := [each.name for each in calls if each.args.args]:
        raise FormatError(f"{wrong[0]} has arguments, which only pytest would give it")
    if not calls and not _reaches_an_assertion(data, {each.name for each in functions}):
        raise FormatError("the column 'test' has no assertion that is reached")
    yield testing("\n".join([data, *(f"{each.name}()" for each in calls)]))


def _reaches_an_assertion(code: str, functions: Collection[str]) -> bool:
    """Whether a module asserts or raises outside of functions, or calls one of its own."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    run = [each for each in _parsed(code).body if not isinstance(each, definitions)]
    nodes = [node for each in run for node in ast.walk(each)]
    calls = {getattr(each.func, "id", None) for each in nodes if isinstance(each, ast.Call)}
    return bool(calls & {*functions}) or any(isinstance(x, ast.Assert | ast.Raise) for x in nodes)


def testing(code: str) -> Testing:
    """Tests that are code; names that they use and neither define nor import are the program's, and
    so are those that they import from a module `solution`."""
    tree = _parsed(code)
    theirs = [x for x in tree.body if isinstance(x, ast.ImportFrom) and x.module == "solution"]
    imported = {alias.name for each in theirs for alias in each.names} - {"*"}
    tree.body = [each for each in tree.body if each not in theirs]
    nodes = [*ast.walk(tree)]
    names = [each for each in nodes if isinstance(each, ast.Name)]
    own = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    own |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    own |= {
        each.name
        for each in nodes
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    own |= {
        (alias.asname or alias.name).partition(".")[0]
        for each in nodes
        if isinstance(each, ast.Import | ast.ImportFrom)
        for alias in each.names
    }
    used = {each.id for each in names} - own - {*dir(builtins)} | imported
    if not used:
        raise FormatError("the tests call nothing of a program")
    return Testing(ast.unparse(tree) if theirs else code, sorted(used))


def _parsed(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise FormatError(f"the tests are not Python: {error}") from error
