"""Interface: what tests that are code use of a program: its functions, classes and exceptions.

It is read from the tests alone: what a program says of itself proves nothing. A class is a name
that begins with a capital and is used as one: `Stack().push(1)`, `isinstance(x, Stack)`,
`Stack.of(1)`. So a function `Diff` whose result is compared is none, and has to return plain data.
"""

import ast
import builtins
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from groupwise_code.problem import FormatError
from groupwise_sandbox.handles import PLAIN_METHODS

Function = ast.FunctionDef | ast.AsyncFunctionDef
_RAISES = ("raises", "assertRaises", "assertRaisesRegex")
_EQUALS = ("assertEqual", "assertEquals", "assertNotEqual")


@dataclass(frozen=True)
class Interface:
    """What tests use and neither define nor import."""

    names: Sequence[str]
    classes: Sequence[str]
    """Those of which the tests use objects."""
    exceptions: Sequence[str]
    """Those that the tests expect to be raised."""

    @property
    def functions(self) -> set[str]:
        """All others."""
        return {*self.names} - {*self.classes, *self.exceptions}


def interface_of(tree: ast.Module, imported: Collection[str] = ()) -> Interface:
    """What a module of tests uses; imported: what it imports from the program.

    Raises FormatError for tests that use nothing, or use a class in a way that only the program
    itself could answer for.
    """
    nodes = [*ast.walk(tree)]
    used = _used(nodes) | {*imported}
    if not used:
        raise FormatError("the tests call nothing of a program")
    exceptions = {name for each in nodes for name in _expected(each)} & used
    capitals = {each for each in used - exceptions if each[0].isupper()}
    classes = {name for scope in _scopes(tree) for name in _Objects(scope, capitals, used).classes}
    for each in nodes:
        bases = map(_name, each.bases) if isinstance(each, ast.ClassDef) else ()
        if derived := [base for base in bases if base in used]:
            raise FormatError(f"the tests derive a class from {derived[0]}, which is the program's")
    for scope in _scopes(tree):
        _Objects(scope, classes, used).check_operators()
    return Interface(sorted(used), sorted(classes), sorted(exceptions))


def modules_in(tree: ast.Module) -> Sequence[str]:
    """Python's own modules that tests use and do not import, since the program imports them."""
    nodes = [*ast.walk(tree)]
    owners = (each.value for each in nodes if isinstance(each, ast.Attribute))
    return sorted(_used(nodes) & {*map(_name, owners)} & sys.stdlib_module_names)


class Discarding(ast.NodeTransformer):
    """Lets a call whose result is discarded change its arguments: there is no other answer.

    Elsewhere they cross as copies, so a program cannot change what its result is compared with.
    """

    def __init__(self, functions: Collection[str]) -> None:
        self._functions = functions

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        match node.value:
            case ast.Call(func=ast.Name(id=name) as function) if name in self._functions:
                node.value.func = ast.Attribute(function, "in_place", ast.Load())
        return node


def _used(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that are neither defined nor imported, and no builtins."""
    names = [each for each in nodes if isinstance(each, ast.Name)]
    own = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    own |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    own |= {each.name for each in nodes if isinstance(each, Function | ast.ClassDef)}
    own |= {each.name for each in nodes if isinstance(each, ast.ExceptHandler) and each.name}
    own |= {
        (alias.asname or alias.name).partition(".")[0]
        for each in nodes
        if isinstance(each, ast.Import | ast.ImportFrom)
        for alias in each.names
    }
    return {each.id for each in names} - own - {*dir(builtins), "__name__"}


def _expected(node: ast.AST) -> Iterator[str]:
    """The names of exceptions in `except X`, `pytest.raises(X)` and `assertRaises(X)`."""
    kind: ast.expr | None = None
    if isinstance(node, ast.ExceptHandler):
        kind = node.type
    elif isinstance(node, ast.Call) and node.args and _last(node.func) in _RAISES:
        kind = node.args[0]
    for each in kind.elts if isinstance(kind, ast.Tuple) else [kind]:
        if isinstance(each, ast.Name):
            yield each.id


def _scopes(tree: ast.Module) -> list[list[ast.AST]]:
    """The nodes of each function, and those outside of functions, where names mean the same."""
    owners = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    bodies = [*tree.body, *(each for owner in owners for each in owner.body)]
    functions = [each for each in bodies if isinstance(each, Function)]
    inside = [[*ast.walk(each)] for each in functions]
    known = {id(each) for scope in inside for each in scope}
    return [*inside, [each for each in ast.walk(tree) if id(each) not in known]]


class _Objects:
    """How a part of the tests uses the objects of classes, by names that may be classes."""

    def __init__(self, nodes: Sequence[ast.AST], kinds: Collection[str], used: set[str]) -> None:
        self._nodes, self._kinds, self._used = nodes, kinds, used
        self._held = {
            ast.unparse(target): kind
            for each in nodes
            for target, value in _assigned(each)
            if (kind := self._made(value)) is not None
        }
        """By variable, of which class its object is made."""
        self._sets_attributes = any(map(_is_set, nodes))

    @property
    def classes(self) -> set[str]:
        """Those of the names that are used as classes."""
        named = (name for each in self._nodes for name in self._evidence(each))
        return {name for name in named if name is not None and name in self._kinds}

    def _evidence(self, node: ast.AST) -> Iterator[str | None]:
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in self._kinds:
                yield name
            case ast.Attribute(value=owner, attr=attribute) if attribute not in PLAIN_METHODS:
                yield self._object(owner)
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                yield from map(_name, kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])
            case ast.Call(func=ast.Name(id=name), args=given) if name in self._used:
                yield from map(self._made, given)
                yield name if self._sets_attributes else None
            case ast.Return(value=ast.Call() as made) | ast.withitem(context_expr=made):
                yield self._made(made)
            case ast.FunctionDef(decorator_list=marks) | ast.ClassDef(decorator_list=marks):
                yield from (_name(getattr(each, "func", each)) for each in marks)

    def check_operators(self) -> None:
        """Raises FormatError where objects are compared, or computed with."""
        for each in self._nodes:
            match each:
                case ast.Compare(left=left, ops=operations, comparators=others):
                    tests = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
                    is_equality = not all(isinstance(op, tests) for op in operations)
                    operands, verb = [left, *others] if is_equality else [], "compare"
                case ast.Call(func=function, args=given) if _last(function) in _EQUALS:
                    operands, verb = given[:2], "compare"
                case ast.BinOp(left=left, right=right):
                    operands, verb = [left, right], "compute with"
                case _:
                    continue
            kind = next(filter(None, map(self._object, operands)), None)
            if kind and (verb != "compare" or self._is_compared(operands)):
                raise FormatError(
                    f"the tests {verb} objects of {kind}, which only the program could answer for"
                )

    def _is_compared(self, operands: Sequence[ast.expr]) -> bool:
        """Whether only the program could say what is equal: for a new object, two of them, or one
        and plain data. One that the tests hold may be what a program gives."""
        objects = [each for each in operands if self._object(each)]
        literals = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set)
        is_plain = any(isinstance(each, literals) for each in operands)
        is_new = any(map(self._made, operands))
        return len(objects) > 1 or bool(objects and (is_plain or is_new))

    def _made(self, node: ast.expr | None) -> str | None:
        """The class of an object that a call makes."""
        name = _name(node.func) if isinstance(node, ast.Call) else None
        return name if name is not None and name in self._kinds else None

    def _object(self, node: ast.expr) -> str | None:
        return self._made(node) or self._held.get(ast.unparse(node))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for each in targets:
                if isinstance(each, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(each.elts, value.elts, strict=False)
                else:
                    yield each, value
        case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield target, value


def _is_set(node: ast.AST) -> bool:
    """Whether an attribute is set, of what is not the object of a test: plain data has none."""
    match node:
        case ast.Attribute(value=owner, ctx=ast.Store()):
            return _name(owner) not in ("self", "cls")
    return False


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _last(node: ast.expr) -> str | None:
    """`c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else _name(node)
