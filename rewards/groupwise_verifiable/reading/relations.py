"""Equations: solved for a name, chains, everything on one side."""

from groupwise_verifiable.reading.node import Node, factors
from groupwise_verifiable.reading.value import NoValueError, equivalent, value


def equals(one: Node, other: Node) -> bool:
    """Returns whether two constants are equal, computed or not; sides that have no value are."""
    try:
        value(one), value(other)
    except NoValueError:
        return True
    return equivalent(one, other, exact=False)


def on_one_side(equation: Node) -> Node:
    """Returns the left side minus the right one."""
    left, right = equation.args
    zero = Node("number", text="0")
    if right == zero:
        return left
    return Node("neg", (right,)) if left == zero else Node("add", (left, Node("neg", (right,))))


def is_differential(node: Node) -> bool:
    """Returns whether an expression begins with dy/dx or d/dx."""
    first = factors(node)[0]
    return first.kind == "div" and all(
        factors(side)[0] == Node("name", text="d") for side in first.args
    )


def is_solved(node: Node) -> bool:
    """Returns whether an equation has a name, or a function of one, on its left side alone."""
    left, right = node.args[0], node.args[-1]
    if node.kind != "relation" or node.text.split()[0] != "=":
        return False
    return left.kind in ("call", "text") or (
        left.kind == "name" and not left.unknowns & right.unknowns
    )


def names_one(gold: Node, answer: Node) -> bool:
    """Returns whether two solved equations are of the same name: y and f(x) may be one."""
    if gold == answer or gold.kind == answer.kind:
        return gold == answer
    function = gold if gold.kind == "call" else answer
    return function.kind == "call" and function.args[0].kind == "name" and "'" not in function.text
