"""Read the docstring of a registered name without importing its module, which may be heavy."""

import ast
import inspect
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

WHEN = "When to use it: "


def docstring(target: str) -> str:
    """The docstring of "module:attribute", unindented; "" if there is none.

    Of a class or a function its own, of any other value the string below its assignment. Read from
    the module's source; only the packages around it are imported.
    """
    module, _, attribute = target.partition(":")
    source = _source(module)
    text, body = "", source.body if source else []
    for name in attribute.split("."):
        text, body = _members(body).get(name, ("", []))
    return text


def _members(body: Sequence[ast.stmt]) -> dict[str, tuple[str, list[ast.stmt]]]:
    """The docstring and the body of all that these statements define, by name."""
    members: dict[str, tuple[str, list[ast.stmt]]] = {}
    for node, below in pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            members[node.name] = ast.get_docstring(node) or "", node.body
        elif isinstance(node, ast.Assign) and isinstance(below, ast.Expr):
            text = getattr(below.value, "value", None)
            if isinstance(text, str):
                names = [each.id for each in node.targets if isinstance(each, ast.Name)]
                members |= {name: (inspect.cleandoc(text), []) for name in names}
    return members


def line(target: str) -> str:
    """The first line of its docstring."""
    return docstring(target).partition("\n")[0]


def when(target: str) -> str:
    """The paragraph "When to use it: ..." of its docstring, or else of its module's; or empty."""
    module = _source(target.partition(":")[0])
    around = "" if module is None else ast.get_docstring(module) or ""
    paragraphs = [*docstring(target).split("\n\n"), *around.split("\n\n")]
    return next((each for each in paragraphs if each.startswith(WHEN)), "")


def _source(module: str) -> ast.Module | None:
    try:
        spec = find_spec(module)
        if spec and spec.origin:
            return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    except Exception:  # third-party code: a missing description must not break the listing
        return None
    return None
