"""Assertions: tests that are code, and what they need of a program."""

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from groupwise_code import collected
from groupwise_code.interface import Discarding, interface_of, modules_in
from groupwise_code.problem import Case, FormatError, Testing
from groupwise_code.values import column
from groupwise_sandbox.sandbox import Suite

SPACE = 16 << 20
"""Bytes of the folder of tests that use files."""
_OUTSIDE = {"multiprocessing", "socket", "subprocess"}
"""Modules of tests that need processes or a network."""
_OF_FILES = {"dbm", "fileinput", "filecmp", "glob", "shutil", "sqlite3", "tempfile", "zipfile"}
_LOADERS = {"importlib", "runpy"}
"""Modules by which tests that read a program's files would run what is in them."""
_RUNNING = {"dill", "eval", "exec", "joblib", "marshal", "pickle", "shelve"}
"""Modules and functions that run what they are given, which may be what a program gave."""


def listed(row: Mapping[str, Any]) -> Iterable[Case]:
    """MBPP: `test_list`, asserts of which each is a case; `test_setup_code`, `test_imports`."""
    return each_of(column(row, "test_list"), row)


def each_of(asserts: Sequence[str], row: Mapping[str, Any]) -> Iterable[Case]:
    """Asserts, after the row's imports and setup code."""
    opening = "\n".join([*(row.get("test_imports") or []), row.get("test_setup_code") or ""])
    for each in asserts:
        yield _testing(_parsed(f"{opening}\n{each}\n"))


def module(row: Mapping[str, Any]) -> Iterable[Case]:
    """HumanEval: `test` defines `check(candidate)`, which is called with `entry_point`. KodCode:
    `test` or `test_code` is a file for pytest, whose tests are called, or has assertions."""
    code = row.get("test") or row.get("test_code")
    if not isinstance(code, str):
        raise FormatError("the tests are not code")
    tree = _parsed(code)
    tree.body = [each for each in tree.body if not _is_main(each)]
    functions = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    entry = row.get("entry_point")
    if entry and "check" in functions:
        calls = [f"check({entry})"]
    else:
        calls = collected.calls(tree)
        if not calls and entry:
            raise FormatError("the column 'test' defines no function check(candidate)")
        if not calls and not _reaches_an_assertion(tree, functions):
            raise FormatError("the tests have no assertion that is reached")
    yield _testing(tree, calls)


def of_folder(code: str, modules: Collection[str]) -> tuple[Testing, str]:
    """Tests that are a file for pytest, which import from these modules of a folder; and the code
    of a program that has what they import. Raises FormatError."""
    tree = _parsed(code)
    tree.body = [each for each in tree.body if not _is_main(each)]
    if not (calls := collected.calls(tree)):
        raise FormatError("the tests have no function that pytest would call")
    solution = _Solution(modules)
    testing = _testing(tree, calls, solution)
    return testing, "\n".join(solution.imports)


def runs_answers(tree: ast.Module, own: Collection[str] = ()) -> str | None:
    """By what a module may run what a program gives it, which could then write its own verdict.

    own: names that it has from the program.
    """
    names = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)} - {*own}
    return min((names | {*collected.imported(tree)}) & _RUNNING, default=None)


def _is_main(statement: ast.stmt) -> bool:
    """Whether it is for a file that is run, which tests are not: `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _reaches_an_assertion(tree: ast.Module, functions: Collection[str]) -> bool:
    """Whether a module asserts or raises outside of functions, or calls one of its own."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    run = [each for each in tree.body if not isinstance(each, definitions)]
    nodes = [node for each in run for node in ast.walk(each)]
    calls = {getattr(each.func, "id", None) for each in nodes if isinstance(each, ast.Call)}
    return bool(calls & {*functions}) or any(isinstance(x, ast.Assert | ast.Raise) for x in nodes)


def _testing(
    tree: ast.Module, calls: Sequence[str] = (), solution: "_Solution | None" = None
) -> Testing:
    """Tests that are code; names that they use and neither define nor import are the program's, and
    so are those that they import from a module of it. Raises FormatError."""
    try:
        return _read(tree, calls, solution or _Solution(["solution"]))
    except RecursionError as error:  # of a sum of hundreds of terms
        raise FormatError("the tests are nested too deeply") from error


def _read(tree: ast.Module, calls: Sequence[str], solution: "_Solution") -> Testing:
    tree = ast.fix_missing_locations(solution.visit(tree))
    taken = modules_in(tree)
    tree.body[:0] = [ast.Import([ast.alias(each)]) for each in taken]
    called = _parsed("\n".join(calls))
    modules = {*collected.imported(tree)}
    interface = interface_of(ast.Module([*tree.body, *called.body], []), solution.names - {*taken})
    if outside := sorted(modules & _OUTSIDE):
        raise FormatError(f"the tests need processes or a network: they use {outside[0]}")
    if runs := runs_answers(tree, solution.names):
        raise FormatError(f"the tests use {runs}, which may run what a program gives")
    use_files = bool(modules & _OF_FILES) or collected.uses_files(ast.walk(tree))
    if use_files and (loaders := sorted(modules & _LOADERS)):
        raise FormatError(f"the tests use files and {loaders[0]}, which may run what is in them")
    tree = ast.fix_missing_locations(Discarding(interface.functions).visit(tree))
    suite = Suite(
        code=ast.unparse(tree),
        calls=calls,
        stubs=interface.names,
        classes=interface.classes,
        exceptions=interface.exceptions,
        space=SPACE if use_files else 0,
    )
    return Testing(suite, sorted(modules))


class _Solution(ast.NodeTransformer):
    """Takes off imports of modules which are the program's, and annotations of functions, which may
    name what a program imports."""

    def __init__(self, modules: Collection[str]) -> None:
        self._modules = modules
        self.names = set[str]()
        """Of the program, that were imported."""
        self.imports = list[str]()
        """How."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.stmt:
        for name in (alias.name for alias in node.names):
            if name.partition(".")[0] in self._modules:
                raise FormatError(f"the tests import the module {name!r} as a whole")
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | list[ast.stmt]:
        if node.level or (node.module or "").partition(".")[0] not in self._modules:
            return node
        named = [alias for alias in node.names if alias.name != "*"]
        if twice := sorted(self.names & {alias.name for alias in named}):
            self._check_same(node, twice[0])
        self.names |= {alias.name for alias in named}
        self.imports += [f"from {node.module} import {alias.name}" for alias in named]
        renamed = [f"{alias.asname} = {alias.name}" for alias in named if alias.asname]
        return ast.parse("\n".join(renamed or ["pass"])).body

    def _check_same(self, node: ast.ImportFrom, name: str) -> None:
        if f"from {node.module} import {name}" not in self.imports:
            raise FormatError(f"the tests import {name!r} from two modules")


def _parsed(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormatError(f"the tests are not Python: {error or 'nested too deeply'}") from error
