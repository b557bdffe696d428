"""Read the docstring of a registered name without importing its module, which may be heavy."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def docstring(target: str) -> str:
    """The docstring of "module:attribute", unindented; "" if there is none.

    Read from the module's source; only the packages around it are imported.
    """
    module, _, attribute = target.partition(":")
    node: Any = None
    try:
        spec = find_spec(module)
        if spec and spec.origin:
            node = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    except Exception:  # third-party code: a missing description must not break the listing
        return ""
    for name in attribute.split("."):
        inside = getattr(node, "body", ())
        node = next((each for each in inside if getattr(each, "name", None) == name), None)
    has_docstring = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return (ast.get_docstring(node) or "") if has_docstring else ""


def line(target: str) -> str:
    """The first line of its docstring."""
    return docstring(target).partition("\n")[0]
