"""Read the docstring of a registered name without importing its module, which may be heavy."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WHEN = "When to use it: "


def docstring(target: str) -> str:
    """The docstring of "module:attribute", unindented; "" if there is none.

    Read from the module's source; only the packages around it are imported.
    """
    module, _, attribute = target.partition(":")
    node: Any = _source(module)
    for name in attribute.split("."):
        inside = getattr(node, "body", ())
        node = next((each for each in inside if getattr(each, "name", None) == name), None)
    has_docstring = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return (ast.get_docstring(node) or "") if has_docstring else ""


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
