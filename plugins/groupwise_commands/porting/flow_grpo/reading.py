"""Reads a function of flow_grpo's `config/grpo.py`, statement by statement, without running it."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from groupwise.kit.errors import UserError, did_you_mean
from groupwise_commands.porting.constants import dotted
from groupwise_commands.porting.flow_grpo.statements import ROOT, Statements
from groupwise_commands.porting.option import table
from groupwise_commands.porting.settings import Settings, text_of

EXPECTED = "a file of flow_grpo's configurations and a name in it, as config/grpo.py:pickscore_sd3"


def settings(config: str) -> Settings:
    """Raises UserError if the file is not flow_grpo's, or has no such configuration."""
    name, _, function = config.rpartition(":")
    if not name.endswith(".py"):
        raise UserError(f"{config}: expected {EXPECTED}")
    path = Path(name)
    body = _body(path)
    functions = _functions(path, body)
    if function not in functions:
        hint = did_you_mean(function, functions)
        raise UserError(
            f"{name}: no configuration {function!r}{hint}; there are {', '.join(functions)}"
        )
    options = [option for group in table(__package__) for option in group.options]
    published = {name: option.default for option in options for name in option.names}
    read = Statements(path, functions, published, _base(path))
    read.constants(body)
    read.call(functions[function])
    return Settings(source=config, stated=read.stated, unread=read.unread, processes=read.processes)


def _body(path: Path) -> Sequence[ast.stmt]:
    text = text_of(path, EXPECTED)
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        raise UserError(f"{path}: not valid Python; expected {EXPECTED}") from None


def _functions(path: Path, body: Sequence[ast.stmt]) -> Mapping[str, ast.FunctionDef]:
    """The file's functions that make configurations, or return what another one makes."""
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    makes = {name: node for name, node in functions.items() if _sets_config(node)}
    if not makes:
        raise UserError(f"{path}: no function sets `config.…`; expected {EXPECTED}")
    while more := {
        name: node
        for name, node in functions.items()
        if name not in makes and not _returned(node).isdisjoint(makes)
    }:
        makes |= more
    return {name: node for name, node in functions.items() if name in makes}


def _sets_config(node: ast.FunctionDef) -> bool:
    """Whether it assigns `config`, or a value in it."""
    return any(
        isinstance(each, ast.Assign)
        and any(f"{dotted(target)}.".startswith(f"{ROOT}.") for target in each.targets)
        for each in ast.walk(node)
    )


def _returned(node: ast.FunctionDef) -> set[str]:
    """The names of functions whose result it returns."""
    return {
        dotted(each.value.func)
        for each in ast.walk(node)
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Call)
    }


def _base(path: Path) -> Mapping[str, object]:
    """What `base.py` beside the file, if it is there, sets."""
    base = path.with_name("base.py")
    functions = {}
    if base.exists() and base != path:
        functions = {n.name: n for n in _body(base) if isinstance(n, ast.FunctionDef)}
    read = Statements(base, functions)
    if "get_config" in functions:
        read.call(functions["get_config"])
    return read.stated
