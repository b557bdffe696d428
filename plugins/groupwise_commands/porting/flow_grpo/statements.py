"""Statements: what the functions of a configuration assign, as far as no run is needed to know."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from groupwise.kit.errors import UserError
from groupwise_commands.porting.constants import NotConstantError, constant, dotted
from groupwise_commands.porting.settings import Unread

ROOT = "config"
DEEPEST = 20
"""The most functions that build on each other."""
GPUS = ("gpu_number", "n_gpus")
"""Variables with the number of processes."""


class Statements:
    """What a file's functions assign to `config`.

    A statement that cannot be followed, such as a loop, makes all that it may assign unknown, and
    so does an expression with an unknown value: what depends on these is unknown, too.

    published, base: values by dotted name of the configuration that `get_config` of another file
    makes: those that every copy of it has, and those of the copy beside this file.
    stated: values by dotted name, without `config.`; unread: those that are unknown, and statements
    that were not followed; processes: of the variables of GPUS, None if none has a value.
    """

    def __init__(
        self,
        path: Path,
        functions: Mapping[str, ast.FunctionDef],
        published: Mapping[str, Any] = MappingProxyType({}),
        base: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.path, self.functions, self.published, self.base = path, functions, published, base
        self.stated: dict[str, Any] = {}
        self.unread: dict[str, Unread] = {}
        self.processes: int | None = None
        self._names: dict[str, Any] = {}  # values of expressions, by dotted name
        self._sections = {ROOT: ""}  # by variable, where in the configuration it points
        self._function = ""
        self._depth = 0

    def constants(self, body: Iterable[ast.stmt]) -> None:
        """Take the values of a module's own variables."""
        for statement in body:
            if isinstance(statement, ast.Assign):
                self._assign(statement.targets, statement.value, statement)

    def call(self, function: ast.FunctionDef, call: ast.Call | None = None) -> None:
        """Follow a function's statements, with the arguments of a call."""
        if self._depth > DEEPEST:
            raise UserError(f"{self.path}: configurations build on each other without end")
        arguments = self._arguments(function, call)
        outer = {n: v for n, v in self._names.items() if not n.startswith(f"{ROOT}.")}
        name, self._function = self._function, function.name
        self._depth += 1
        for argument, value in arguments.items():
            self._set(argument, value)
        self._follow(function.body)
        self._depth -= 1
        self._function = name
        own = {n: v for n, v in self._names.items() if n.startswith(f"{ROOT}.")}
        self._names = outer | own

    def _arguments(
        self, function: ast.FunctionDef, call: ast.Call | None
    ) -> Mapping[str, ast.expr | None]:
        """The expression of each parameter; None if it is unknown."""
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        defaults = function.args.defaults
        expressions: dict[str, ast.expr | None] = dict.fromkeys(names)
        expressions |= dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        expressions |= {
            each.arg: default
            for each, default in zip(
                function.args.kwonlyargs, function.args.kw_defaults, strict=True
            )
        }
        if call is not None:
            expressions |= dict(zip(names, call.args, strict=False))
            expressions |= {
                each.arg: each.value for each in call.keywords if each.arg in expressions
            }
        return expressions

    def _follow(self, body: Sequence[ast.stmt]) -> bool:
        """Follow these statements; returns whether the function has returned."""
        for statement in body:
            if isinstance(statement, ast.Return):
                self._build(statement.value)
                return True
            if isinstance(statement, ast.If):
                try:
                    known = constant(statement.test, self._names)
                except NotConstantError:
                    self._leave(statement)
                else:
                    if self._follow(statement.body if known else statement.orelse):
                        return True
            else:
                self._one(statement)
        return False

    def _one(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value, statement)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign([target], value, statement)
            case ast.AugAssign(target=target, op=op, value=value):
                self._assign([target], ast.BinOp(_loaded(target), op, value), statement)
            case ast.Expr(value=ast.Call() as call) if self._update(call):
                pass
            case ast.Assert() | ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case _:
                self._leave(statement)

    def _update(self, call: ast.Call) -> bool:
        """Follow `config.update({...})`; returns whether the call is one."""
        match call:
            case ast.Call(
                func=ast.Attribute(value=section, attr="update"), args=[ast.Dict() as options]
            ) if dotted(section).partition(".")[0] in self._sections:
                keys = [getattr(key, "value", None) for key in options.keys]
                if all(isinstance(key, str) for key in keys) and not call.keywords:
                    for key, value in zip(keys, options.values, strict=True):
                        self._set(f"{dotted(section)}.{key}", value, call.lineno)
                    return True
        return False

    def _build(self, value: ast.expr | None) -> bool:
        """Follow a call that makes a configuration; returns whether this is one."""
        if not isinstance(value, ast.Call):
            return False
        called = dotted(value.func)
        if called in self.functions:
            self.call(self.functions[called], value)
            return True
        if called.rpartition(".")[2] == "get_config":
            for name, each in {**self.published, **self.base}.items():
                self._names[f"{ROOT}.{name}"] = each
                if name not in self.published or each != self.published[name]:
                    self.stated[name] = each
            return True
        return called.endswith("ConfigDict")

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr, statement: ast.stmt) -> None:
        names = [dotted(target) for target in targets]
        is_section = isinstance(value, ast.Call) and dotted(value.func).endswith("ConfigDict")
        if is_section and names != [ROOT]:
            place = next((self._place(each) or "" for each in names if "." in each), "")
            self._sections |= {each: place for each in names if "." not in each}
        elif names == [ROOT]:
            if not self._build(value):
                self._leave(statement)
        elif all(names):
            for name in names:
                self._set(name, value, statement.lineno)
        else:
            self._leave(statement)

    def _set(self, name: str, value: ast.expr | None, line: int | None = None) -> None:
        """Set a variable, or an option, to the value of an expression; None: it is unknown."""
        place = self._place(name)
        key = name if place is None else f"{ROOT}.{place}"
        try:
            if value is None:
                raise NotConstantError
            known = self._names[key] = constant(value, self._names)
        except NotConstantError:
            self._forget(name, Unread(source=ast.unparse(value) if value else "", line=line))
            return
        if place is not None:
            self.stated[place] = known
            self.unread.pop(place, None)
        elif name in GPUS and isinstance(known, int):
            self.processes = known

    def _forget(self, name: str, unread: Unread) -> None:
        """A variable, or an option, has an unknown value from now on."""
        place = self._place(name)
        self._names.pop(name if place is None else f"{ROOT}.{place}", None)
        if place is not None:
            self.stated.pop(place, None)
            self.unread[place] = unread

    def _leave(self, statement: ast.stmt) -> None:
        """Do not follow a statement: all that it may assign is unknown."""
        assigned = [
            (name, each)
            for each in ast.walk(statement)
            for target in _targets(each)
            if (name := dotted(target)) and name != ROOT
        ]
        for name, each in assigned:
            value = getattr(each, "value", None) or each
            line = getattr(each, "lineno", None)
            self._forget(name, Unread(source=ast.unparse(value), line=line))
        if not any(self._place(name) for name, _ in assigned):
            source = ast.unparse(statement).splitlines()[0]
            place = f"{self._function}, a statement in line {statement.lineno}"
            self.unread[place] = Unread(source=source, line=statement.lineno)

    def _place(self, target: str) -> str | None:
        """The dotted name of an option that is assigned to; None for any other variable."""
        head, _, rest = target.partition(".")
        if not rest or head not in self._sections:
            return None
        above = self._sections[head]
        return f"{above}.{rest}" if above else rest


def _targets(node: ast.AST) -> Sequence[ast.expr]:
    """What a node assigns to."""
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
        return [node.target]
    return []


def _loaded(target: ast.expr) -> ast.expr:
    """A target as an expression that is read."""
    return ast.parse(ast.unparse(target), mode="eval").body
