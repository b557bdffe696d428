"""What a registered name says of itself, read without importing it: its module may be heavy."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WHEN = "When to use it: "


def docstring(target: str) -> str:
    """The docstring of "module:attribute", unindented; empty where there is none.

    Read from the module's source; only the packages around it are imported.
    """
    module, _, attribute = target.partition(":")
    node: Any = _source(module)
    for name in attribute.split("."):
        inside = getattr(node, "body", ())
        node = next((each for each in inside if getattr(each, "name", None) == name), None)
    described = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return (ast.get_docstring(node) or "") if described else ""


def line(target: str) -> str:
    """Its first line."""
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
    except Exception:  # a stranger's package, of which this is only a description
        return None
    return None
