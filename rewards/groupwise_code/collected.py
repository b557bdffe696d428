"""Collected: what pytest would call of a module of tests, as code that calls it.

Functions `test...`, also with `pytest.mark.parametrize`; methods `test...` of classes `Test...`,
each on a new object; and test cases of unittest. What pytest alone could give is refused by name.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence

from groupwise_code.problem import FormatError

_REFUSED = ("fixture", "skip", "skipif", "usefixtures", "xfail", "patch")
"""Decorators with which a function is not simply called."""
_BEFORE = ("setup", "setup_class", "setup_function", "setup_module", "teardown_method")
_TEMPORARY = "__import__('pathlib').Path(__import__('tempfile').mkdtemp())"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def calls(module: ast.Module) -> list[str]:
    """Statements that call the tests of a module, whose parametrize is taken off.

    Raises FormatError for tests that need more than a call.
    """
    statements = list[str]()
    for each in module.body:
        if isinstance(each, ast.ClassDef):
            statements += _of_class(each)
        elif isinstance(each, Function) and _is_test(each):
            statements.append(_call(each, f"{each.name}("))
    return statements


def _is_test(function: Function) -> bool:
    """Whether pytest collects it. Raises FormatError for what it would do besides."""
    names = {_last_name(each) for each in function.decorator_list}
    if refused := sorted(names & {*_REFUSED}) or [n for n in _BEFORE if n == function.name]:
        raise FormatError(f"the tests need pytest to run: {function.name} has or is {refused[0]}")
    return function.name.startswith("test")


def _of_class(owner: ast.ClassDef) -> list[str]:
    methods = [each for each in owner.body if isinstance(each, Function)]
    if "TestCase" in map(_last_name, owner.bases):
        if not any(each.name.startswith("test") for each in methods):
            return []
        loaded = f"defaultTestLoader.loadTestsFromTestCase({owner.name})"
        return [f"__import__('unittest').{loaded}.debug()"]  # raises what a test raises
    names = [each.name for each in methods]
    if not owner.name.startswith("Test") or "__init__" in names:
        return []
    begin = f"_test = {owner.name}()\n"
    if "setup_method" in names:
        begin += "_test.setup_method()\n"
    return [begin + _call(each, f"_test.{each.name}(", own=1) for each in methods if _is_test(each)]


def _call(function: Function, opening: str, own: int = 0) -> str:
    """The calls of a test, one for each of its sets of parameters.

    own: how many of its arguments are given by the call itself.
    """
    marks = [each for each in function.decorator_list if _last_name(each) == "parametrize"]
    handled = ("parametrize", "asyncio")
    kept = [each for each in function.decorator_list if _last_name(each) not in handled]
    function.decorator_list = kept
    loops, given, names = "", list[str](), set[str]()
    for depth, mark in enumerate(marks):
        arguments, values = _parameters(function, mark)
        item = f"_{depth}" if len(arguments) > 1 else f"(_{depth},)"
        loops += f"{' ' * depth}for _{depth} in {values}:\n"
        given.append(f"**dict(zip({arguments!r}, {item}, strict=True))")
        names |= {*arguments}
    if any(each.arg == "tmp_path" for each in function.args.args):
        given.append(f"tmp_path={_TEMPORARY}")
        names.add("tmp_path")
    needed = function.args.args[own : len(function.args.args) - len(function.args.defaults)]
    if missing := [each.arg for each in needed if each.arg not in names]:
        raise FormatError(
            f"{function.name} has the argument {missing[0]!r}, which only pytest would give it"
        )
    call = f"{opening}{', '.join(given)})"
    if isinstance(function, ast.AsyncFunctionDef):
        call = f"__import__('asyncio').run({call})"
    return f"{loops}{' ' * len(marks)}{call}"


def _parameters(function: Function, mark: ast.expr) -> tuple[Sequence[str], str]:
    """The names of a mark `parametrize`, and its values as code."""
    problem = FormatError(f"the parameters of {function.name} cannot be read")
    if not isinstance(mark, ast.Call) or len(mark.args) != 2:
        raise problem
    if {each.arg for each in mark.keywords} - {"ids"}:
        raise problem
    names, values = mark.args
    try:
        listed = ast.literal_eval(names)
    except ValueError:
        raise problem from None
    if isinstance(listed, str):
        listed = [each.strip() for each in listed.split(",") if each.strip()]
    return list(listed), ast.unparse(_Parameters().visit(values))


class _Parameters(ast.NodeTransformer):
    """`pytest.param(a, b, id="x")` becomes `(a, b)`."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _last_name(node) != "param":
            return node
        if {each.arg for each in node.keywords} - {"id"}:
            raise FormatError("the tests need pytest to run: pytest.param has marks")
        one = len(node.args) == 1
        return node.args[0] if one else ast.Tuple(elts=node.args, ctx=ast.Load())


def _last_name(node: ast.expr) -> str:
    """`c` of a, b.c and a.b.c(...)."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def uses_files(nodes: Iterable[ast.AST]) -> bool:
    """Whether code opens, makes or looks for files."""
    for each in nodes:
        if isinstance(each, ast.Call):
            owner = getattr(each.func, "value", None)
            name = _last_name(each)
            if name == "open" or name in _OF_PATHS:
                return True
            if isinstance(owner, ast.Name) and owner.id == "os" and name in _OF_OS:
                return True
    return False


_OF_PATHS = ("mkdtemp", "read_bytes", "read_text", "write_bytes", "write_text")
_OF_OS = ("listdir", "makedirs", "mkdir", "remove", "rename", "replace", "rmdir", "stat", "unlink")


def imported(module: ast.Module) -> Iterator[str]:
    """The modules that it imports anywhere, without what is below them."""
    for each in ast.walk(module):
        if isinstance(each, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield (each.module or "").partition(".")[0]
