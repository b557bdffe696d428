"""Names of a Python file: what each stands for, as far as that is known without running it."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from groupwise_commands.porting.constants import NotConstantError, constant


def assigned(tree: ast.AST) -> dict[str, ast.expr]:
    """The expression of each name that is bound exactly once in the file, by a plain assignment."""
    counts = Counter(_bound(tree))
    values: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and counts[target.id] == 1:
                values[target.id] = node.value
    return values


def _bound(tree: ast.AST) -> Iterator[str]:
    """Each name as often as the file binds it: by assignments, loops, contexts, parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def constants(assigned: Mapping[str, ast.expr]) -> dict[str, Any]:
    """The values of those names that are constants, also of others'."""
    names: dict[str, Any] = {}
    for _ in range(len(assigned)):
        before = len(names)
        for name, node in assigned.items():
            if name not in names:
                try:
                    names[name] = constant(node, names)
                except NotConstantError:
                    continue
        if len(names) == before:
            break
    return names


def imports(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """By local name, the module and the name that it was imported from."""
    origins: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            origins |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            origins |= {each.asname or each.name: (each.name, "") for each in node.names}
    return origins
