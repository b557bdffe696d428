"""The items of an answer: of lists, sets, pairs and matrices, `\\pm`, values with names."""

import re
from collections.abc import Callable, Sequence
from math import gcd

from groupwise_verifiable.reading.matrices import column
from groupwise_verifiable.reading.node import Node

# Names whose order is that of a tuple.
_RUNS = (
    *map(tuple, ("abcdefghij", "hk", "mnpq", "pqrst", "uvw", "xyz")),
    ("r", "theta", "phi"),
    ("rho", "theta", "phi"),
)


def unlabelled(node: Node) -> Node:
    """Returns a node without the words of an answer's beginning: "Total = 18", "x = 18"."""
    while node.kind == "label" and node.args[0].kind != "list":
        inner = node.args[0]
        if inner.kind in ("relation", "tuple", "set", "matrix", "ratio"):
            node = inner
        else:
            break
    return node


def by_name(node: Node) -> Node:
    """Returns the equations of `(a, b) = (3, 4)`, a = 3 and b = 4; any other node as it is."""
    if node.kind != "relation" or node.text != "=":
        return node
    columns = [column(part) for part in node.args]
    if {n.kind for n in columns} != {"tuple"} or len(columns) != 2:
        return node
    names, values = columns
    if len(names.args) != len(values.args) or any(n.kind != "name" for n in names.args):
        return node
    pairs = zip(names.args, values.args, strict=True)
    return Node("list", tuple(Node("relation", pair, "=") for pair in pairs), ",")


def sole(node: Node) -> Node:
    """Returns the number in a set of one, as {7} and x \\in {7}; any other node as it is."""
    inner = node.args[-1] if node.kind == "relation" and node.text == "in" else node
    if inner == Node("name", text="empty"):
        return inner
    single = inner.kind == "set" and len(inner.args) == 1
    return inner.args[0] if single and inner.args[0] != Node("name", text="empty") else node


def is_several(node: Node) -> bool:
    """Returns whether a node has several values: a list, a set, a pair of both signs."""
    return node.kind in ("list", "set") or _both_signs(node) is not None


def items(node: Node) -> list[Node]:
    """Returns the values of a node: those of a list or set, both of `\\pm`, or itself."""
    if node.kind == "set":
        return [value for part in node.args for value in (_both_signs(part) or [part])]
    if node.kind == "list":
        first = node.args[0]
        if first.kind == "relation" and set(first.text.split()) == {"="} and len(first.args) > 2:
            middles = items(first.args[-2])  # x = (5 \\pm 7)/4 = 3, -1/2
            values = [first.args[-1], *node.args[1:]]
            if 1 < len(middles) == len(values):
                pairs = zip(middles, values, strict=True)
                return [Node("relation", (first.args[0], *pair), "= =") for pair in pairs]
        return [value for part in node.args for value in items(part)]
    if node.kind == "relation" and set(node.text.split()) == {"="} and is_several(node.args[-1]):
        count = len(items(node.args[-1]))
        sides = [items(side) if is_several(side) else [side] for side in node.args]
        columns = [side if len(side) == count else side[:1] * count for side in sides]
        return [Node("relation", parts, node.text) for parts in zip(*columns, strict=True)]
    if node.kind == "relation" and node.text == "in" and node.args[-1].kind == "set":
        return items(node.args[-1])
    return _both_signs(node) or [node]


def _both_signs(node: Node) -> list[Node] | None:
    """The two values of an expression with one `\\pm`."""
    if sum(part.kind == "pm" for part in node.walk()) != 1 or node.kind in ("list", "set"):
        return None
    return [_with_sign(node, sign) for sign in (1, -1)]


def _with_sign(node: Node, sign: int) -> Node:
    args = tuple(_with_sign(part, sign) for part in node.args)
    if node.kind != "pm":
        return Node(node.kind, args, node.text)
    last = args[-1] if sign > 0 else Node("neg", (args[-1],))
    return Node("add", (args[0], last)) if len(args) > 1 else last


def last_side(node: Node) -> Node:
    """Returns the value of `x = 2`, with its name dropped."""
    return node.args[-1] if is_named(node) else node


def is_named(node: Node) -> bool:
    """Returns whether a node is a value with its name, as x = 2."""
    signs = node.text.split()
    return node.kind == "relation" and {*signs} == {"="} and node.args[0].kind in ("name", "call")


def are_named_differently(values: Sequence[Node]) -> bool:
    """Returns whether values have names of which no two are equal: a = 3, b = -1."""
    names = [value.args[0] for value in values if is_named(value)]
    return len(names) == len(values) > 1 and len(set(names)) == len(names)


def are_of_one_name(values: Sequence[Node]) -> bool:
    """Returns whether values have one name, with different indices: x_1 = 2, x_2 = 3."""
    names = {re.sub("_.*", "", value.args[0].text) for value in values if is_named(value)}
    return are_named_differently(values) and len(names) == 1


def names_of(values: Sequence[Node]) -> set[Node]:
    """Returns the names of values such as x = 2."""
    return {value.args[0] for value in values if is_named(value)}


def in_order(values: Sequence[Node]) -> list[Node]:
    """Returns values in the order of their names, x before y, without these names."""
    if are_named_differently(values):
        names = [value.args[0].text for value in values]
        run = next((run for run in _RUNS if set(names) <= set(run)), None)
        if run is not None:
            values = sorted(values, key=lambda value: run.index(value.args[0].text))
    return [last_side(value) for value in values]


def is_reduced(ratio: Node) -> bool:
    """Returns whether the integers of a ratio have no common divisor."""
    integers = [int(part.text) for part in ratio.args if part.text.isdigit()]
    if any("." in part.text or part.kind == "div" for part in ratio.args):
        return False
    times = any(part.text.startswith("0") for part in ratio.args)
    return not times and (len(integers) < len(ratio.args) or gcd(*integers) <= 1)


def matched(
    golds: Sequence[Node], answers: Sequence[Node], same: Callable[[Node, Node], bool]
) -> bool:
    """Returns whether two sequences are the same, item by item."""
    return len(golds) == len(answers) and all(map(same, golds, answers))
