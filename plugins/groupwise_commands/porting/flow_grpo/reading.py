"""Reads a function of flow_grpo's `config/grpo.py`, statement by statement, without running it."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.errors import UserError, did_you_mean
from groupwise_commands.porting.constants import NotConstantError, constant, dotted
from groupwise_commands.porting.flow_grpo.table import DEFAULTS
from groupwise_commands.porting.settings import Settings, Unread, text_of

EXPECTED = "a file of flow_grpo's configurations and a name in it, as config/grpo.py:pickscore_sd3"
ROOT = "config"
DEEPEST = 20
"""The most functions that build on each other."""


def settings(config: str) -> Settings:
    """Raises UserError if the file is not flow_grpo's, or has no such configuration."""
    name, _, function = config.rpartition(":")
    if not name.endswith(".py"):
        raise UserError(f"{config}: expected {EXPECTED}")
    path = Path(name)
    functions = _functions(path)
    if function not in functions:
        hint = did_you_mean(function, functions)
        raise UserError(
            f"{name}: no configuration {function!r}{hint}; there are {', '.join(functions)}"
        )
    state = _State()
    _run(path, functions, function, state, 0)
    processes = state.names.get("gpu_number")
    return Settings(
        source=config,
        stated=state.stated,
        unread=state.unread,
        processes=processes if isinstance(processes, int) else None,
    )


@dataclass
class _State:
    """stated: values by dotted name, without `config.`; names: those of expressions."""

    stated: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, Unread] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=lambda: {ROOT: ""})


def _functions(path: Path) -> Mapping[str, ast.FunctionDef]:
    text = text_of(path, EXPECTED)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        raise UserError(f"{path}: not valid Python; expected {EXPECTED}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    uses = {name: node for name, node in functions.items() if _makes_config(node)}
    if not uses:
        raise UserError(f"{path}: no function sets `config.…`; expected {EXPECTED}")
    return uses


def _makes_config(node: ast.FunctionDef) -> bool:
    """Whether it assigns `config`, or a value in it."""
    return any(
        isinstance(each, ast.Assign)
        and any(f"{dotted(target)}.".startswith(f"{ROOT}.") for target in each.targets)
        for each in ast.walk(node)
    )


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _run(
    path: Path, functions: Mapping[str, ast.FunctionDef], name: str, state: _State, depth: int
) -> None:
    if depth > DEEPEST:
        raise UserError(f"{path}: configurations build on each other without end")
    for statement in functions[name].body:
        if isinstance(statement, ast.Assign):
            _assign(path, functions, statement, state, depth)
        elif not isinstance(statement, ast.Return | ast.Assert | ast.Pass) and not _is_docstring(
            statement
        ):
            _leave(name, statement, state)


def _leave(name: str, statement: ast.stmt, state: _State) -> None:
    """A statement that only a run would know."""
    source = ast.unparse(statement).splitlines()[0]
    place = f"{name}, a statement in line {statement.lineno}"
    state.unread[place] = Unread(source=source, line=statement.lineno)


def _assign(
    path: Path,
    functions: Mapping[str, ast.FunctionDef],
    statement: ast.Assign,
    state: _State,
    depth: int,
) -> None:
    targets = [dotted(target) for target in statement.targets]
    called = dotted(statement.value.func) if isinstance(statement.value, ast.Call) else ""
    if called in functions and targets == [ROOT]:
        _run(path, functions, called, state, depth + 1)
    elif called.endswith("get_config") and targets == [ROOT]:
        _base(path, state)
    elif called and targets == [ROOT] and not called.endswith("ConfigDict"):
        _leave(called, statement, state)
    elif called.endswith("ConfigDict"):
        place = next((_place(each, state) for each in targets if "." in each), "")
        state.sections |= {each: place for each in targets if "." not in each and each != ROOT}
    else:
        _value(targets, statement, state)


def _base(path: Path, state: _State) -> None:
    """The published defaults; and what `base.py` beside the file, if it is there, has in place of
    them."""
    published = {name: each.default for name, each in DEFAULTS.items()}
    state.names |= {f"{ROOT}.{name}": value for name, value in published.items()}
    base = path.with_name("base.py")
    known = _functions(base) if base.exists() else {}
    if "get_config" in known:
        own = _State()
        _run(base, known, "get_config", own, 0)
        state.names |= own.names
        state.stated |= {
            name: value
            for name, value in own.stated.items()
            if name not in published or value != published[name]
        }


def _value(targets: list[str], statement: ast.Assign, state: _State) -> None:
    for target in targets:
        place = _place(target, state)
        try:
            value = constant(statement.value, state.names)
        except NotConstantError:
            if place:
                source = ast.unparse(statement.value)
                state.unread[place] = Unread(source=source, line=statement.lineno)
            continue
        if place:
            state.stated[place] = value
            state.unread.pop(place, None)
        state.names[f"{ROOT}.{place}" if place else target] = value


def _place(target: str, state: _State) -> str:
    """The dotted name of an option that is assigned to; "" of any other variable."""
    head, _, rest = target.partition(".")
    if not rest or head not in state.sections:
        return ""
    above = state.sections[head]
    return f"{above}.{rest}" if above else rest
