"""Node: mathematics as it is written, before anything in it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CONSTANTS = frozenset({"pi", "e", "i", "infinity", "R", "empty"})
"""Names that are no unknowns."""

MARKS = frozenset({"percent", "degrees", "money", "unit", "label"})
"""Kinds of nodes that mark the one they hold."""


@dataclass(frozen=True)
class Node:
    """kind: what it is, see below; args: its parts; text: the spelling of a leaf, a name, a sign.

    Leaves are `number` (digits as written), `based` (digits and base), `name` and `text` (words).
    Expressions are `add`, `neg`, `mul`, `div`, `pow`, `root` (radicand, index), `mixed`, `pm`
    (term or terms), `call` (text: the function) and `dots`. Marks are `percent`, `degrees`,
    `money`, `unit` and `label` (words after and before an expression). Collections are `list`,
    `tuple` (text: its two brackets), `set`, `matrix` (of `row`s), `ratio`, `union`, `minus` and
    `builder`; a `modulo` is a value or a relation with its modulus. A `relation` has its signs in
    text, separated by blanks.
    """

    kind: str
    args: tuple[Node, ...] = ()
    text: str = ""

    def walk(self) -> Iterator[Node]:
        """Yields this node and all nodes below it."""
        yield self
        for part in self.args:
            yield from part.walk()

    @property
    def unknowns(self) -> frozenset[str]:
        """The names in it that are no constants."""
        names = {node.text for node in self.walk() if node.kind == "name"}
        return frozenset(names - CONSTANTS)


def number(value: int) -> Node:
    """Returns an integer as a leaf."""
    return Node("number", text=str(value))


def integer(node: Node) -> int | None:
    """Returns the integer that a leaf is, with its sign; None for anything else."""
    if node.kind == "neg":
        value = integer(node.args[0])
        return None if value is None else -value
    return int(node.text) if node.kind == "number" and node.text.isdigit() else None


def terms(node: Node) -> tuple[tuple[int, Node], ...]:
    """Returns the terms of a sum with their signs, of sums within it, too; itself if it is none."""
    if node.kind == "add":
        return tuple(term for part in node.args for term in terms(part))
    if node.kind == "neg":
        return tuple((-sign, term) for sign, term in terms(node.args[0]))
    return ((1, node),)


def factors(node: Node) -> tuple[Node, ...]:
    """Returns the factors of a product, of products within it, too; itself if it is none."""
    if node.kind != "mul":
        return (node,)
    return tuple(factor for part in node.args for factor in factors(part))


def key(node: Node) -> object:
    """Returns what two nodes share that differ in nothing but the order of terms and factors."""
    if node.kind == "number":
        whole, _, decimals = node.text.partition(".")
        return ("number", whole.lstrip("0"), decimals.rstrip("0"))
    if node.kind == "add":
        return ("add", _sorted((sign, key(term)) for sign, term in terms(node)))
    if node.kind in ("mul", "set", "list", "union"):
        parts = factors(node) if node.kind == "mul" else node.args
        joined = node.text if any(part.kind == "relation" for part in parts) else ""
        return (node.kind, joined, _sorted(key(part) for part in parts))
    if node.kind == "relation" and node.text == "=":
        return (node.kind, node.text, _sorted(key(part) for part in node.args))
    return (node.kind, node.text, tuple(key(part) for part in node.args))


def _sorted(keys: Iterator[object]) -> tuple[object, ...]:
    return tuple(sorted(keys, key=repr))


def joined(kind: str, parts: list[Node]) -> Node:
    """Returns the node of a sum or product; its part, where there is one alone."""
    return parts[0] if len(parts) == 1 else Node(kind, tuple(parts))


def spelling(node: Node) -> str:
    """Returns the text of a node, or those of its parts side by side."""
    sign = "-" if node.kind == "neg" else ""
    return node.text or "".join(sign + spelling(part) for part in node.args)
