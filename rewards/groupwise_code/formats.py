"""Formats: the tests of a row, as published data sets hold them, told by their columns."""

import ast
import builtins
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from groupwise.kit.foreign_json import read as read_json
from groupwise_code.problem import Calling, Case, FormatError, Printing, Testing

MOST = 10_000
"""Cases of a row."""


def cases_of(row: Mapping[str, Any]) -> list[Case]:
    """The cases of a row. Raises FormatError where its tests cannot be read, or it has none."""
    name = next((name for name in FORMATS if row.get(name) not in (None, "", [])), None)
    if name is None:
        raise FormatError(f"no tests: expected one of the columns {', '.join(FORMATS)}")
    try:
        cases = list(FORMATS[name](_read(row[name], name), row))
    except FormatError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"the column {name!r} is not of its format: {error!r}") from error
    if not cases:
        raise FormatError(f"the column {name!r} holds no test")
    if len(cases) > MOST:
        raise FormatError(f"the column {name!r} holds {len(cases):,} tests, at most {MOST:,}")
    return cases


def _read(value: Any, name: str) -> Any:
    """JSON where a column holds it as text; `test` and lists of asserts are code."""
    if not isinstance(value, str) or name == "test":
        return value
    try:
        return read_json(value)
    except ValueError as error:
        raise FormatError(f"the column {name!r} is not JSON: {error}") from error


def _verification(data: Any, row: Mapping[str, Any]) -> Iterable[Case]:
    """open-r1, SYNTHETIC: {"language", "test_cases": [{"type", "fn_name", "input", "output"}]}."""
    language = data.get("language", "python")
    if language not in ("python", "python3"):
        raise FormatError(f"tests in {language!r}: only Python is run")
    return _listed(data["test_cases"], row)


def _listed(data: Any, _: Mapping[str, Any]) -> Iterable[Case]:
    """prime-rl: a list of cases like those of `_verification`."""
    for case in data:
        name = case.get("fn_name")
        if name:
            arguments = _value(case["input"])
            yield _called(name, arguments, _value(case["output"]))
        else:
            yield Printing(_text(case["input"]), _text(case["output"]))


def _input_output(data: Any, _: Mapping[str, Any]) -> Iterable[Case]:
    """APPS, TACO and verl: {"inputs": [...], "outputs": [...], "fn_name"}."""
    name, pairs = data.get("fn_name"), zip(data["inputs"], data["outputs"], strict=True)
    for given, expected in pairs:
        if name:
            yield _called(name, _value(given), _one(_value(expected)))
        else:
            yield Printing(_text(given), _text(expected))


def _ground_truth(data: Any, row: Mapping[str, Any]) -> Iterable[Case]:
    if isinstance(data, list):
        return _listed(data, row)
    if "assert_case" in data:
        return _asserts(data["assert_case"], row)
    return _input_output(data, row)


def _asserts(data: Sequence[str], row: Mapping[str, Any]) -> Iterable[Case]:
    """MBPP: `test_list`, asserts of which each is a case; `test_setup_code`, `test_imports`."""
    imports = row.get("test_imports") or []
    opening = "\n".join([*imports, row.get("test_setup_code") or ""])
    for each in data:
        yield testing(f"{opening}\n{each}\n")


def _test(data: str, row: Mapping[str, Any]) -> Iterable[Case]:
    """HumanEval: `test` defines `check(candidate)`, which is called with `entry_point`. KodCode:
    functions `test_...`, each of which is called."""
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


FORMATS: Mapping[str, Callable[[Any, Mapping[str, Any]], Iterable[Case]]] = {
    "verification_info": _verification,
    "input_output": _input_output,
    "ground_truth": _ground_truth,
    "test_cases": _listed,
    "test_list": _asserts,
    "test": _test,
}
"""By the column that tells a format, in the order in which they are looked for."""


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


def _called(name: str, arguments: Any, expected: Any) -> Calling:
    if not isinstance(arguments, list):
        raise FormatError(f"arguments of {name!r}: expected a list, found {arguments!r:.60}")
    return Calling(name, arguments, expected)


def _value(data: Any) -> Any:
    """A value that may stand as JSON; in LeetCode's form, one argument a line."""
    if not isinstance(data, str):
        return data
    with suppress(ValueError):
        return read_json(data)
    try:
        return [read_json(line) for line in data.splitlines()]
    except ValueError as error:
        raise FormatError(f"not a value in JSON: {data!r:.60}") from error


def _one(expected: Any) -> Any:
    """APPS wraps what a function returns into a list of one."""
    return expected[0] if isinstance(expected, list) and len(expected) == 1 else expected


def _text(data: Any) -> str:
    """APPS has some inputs as lists of lines."""
    return "\n".join(map(str, data)) if isinstance(data, list) else str(data)
