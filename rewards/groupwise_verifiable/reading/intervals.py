"""Regions of numbers: intervals, their unions, and the relations that describe them."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from groupwise_verifiable.reading.items import items
from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.value import NoValueError, rational, value

_INFINITY = Node("name", text="infinity")
_LEAST = Node("neg", (_INFINITY,))
_REALS = Node("name", text="R")
_CLOSED = (True, True)


@dataclass(frozen=True)
class Interval:
    """ends: lower and upper end; closed: whether each of them belongs to it."""

    ends: tuple[Node, Node]
    closed: tuple[bool, bool]


ALL = Interval((_LEAST, _INFINITY), (False, False))


def intervals(node: Node) -> tuple[Interval, ...] | None:
    """Returns the intervals of a region in their order; None if it is no region as it is written.

    A relation counts if one unknown stands in it alone, against constants; a union if its parts
    neither meet nor overlap.
    """
    parts = _parts(node)
    if parts is None:
        return None
    if len(parts) == 1:
        return tuple(parts)
    try:
        ordered = sorted(parts, key=lambda part: _place(part.ends[0]))
        return tuple(ordered) if _are_apart(ordered) else None
    except (NoValueError, TypeError):
        return tuple(parts)


def _parts(node: Node) -> list[Interval] | None:  # noqa: PLR0911 - a case for each kind
    kind, args = node.kind, node.args
    if node == _REALS:
        return [ALL]
    if kind == "tuple" and len(args) == 2 and len(node.text) == 2 and node.text[0] in "([":
        return [Interval((args[0], args[1]), (node.text[0] == "[", node.text[1] == "]"))]
    if kind == "builder":
        return _parts(args[1]) if args[1].kind in ("relation", "list") else None
    if kind == "union" or (kind == "list" and node.text == "or"):
        return _joined(_parts(part) for part in args)
    if kind == "list" and node.text in ("and", ","):
        return _but(args) if _is_unequal(args[-1]) or _is_unequal(args[0]) else _between(args)
    if kind == "minus":
        return _without(args[0], args[1])
    if kind == "add" and len(args) == 2 and args[1].kind == "neg":  # R - {2}
        return _without(args[0], args[1].args[0])
    return _of_relation(node) if kind == "relation" else None


def _joined(parts: Iterable[list[Interval] | None]) -> list[Interval] | None:
    every: list[Interval] = []
    for part in parts:
        if part is None:
            return None
        every += part
    return every


def _is_unequal(node: Node) -> bool:
    return node.kind == "relation" and node.text == "ne"


def _but(relations: tuple[Node, ...]) -> list[Interval] | None:
    """A region but some points: x in R, x != 1, x != 2, or 0 < x < 5, x != 1, 2."""
    points: list[Node] = []
    regions: list[Node] = []
    for part in relations:
        if _is_unequal(part) and part.args[0].kind == "name":
            points.append(part.args[1])
        elif part.kind == "relation":
            regions.append(part)
        elif points and not part.unknowns:
            points.append(part)
        else:
            return None
    if len(regions) > 1:
        return None
    return _without(regions[0] if regions else _REALS, Node("set", tuple(points)))


def _between(relations: tuple[Node, ...]) -> list[Interval] | None:
    """The numbers between two limits: x > 1 and x < 3."""
    parts = [_of_relation(part) for part in relations if part.kind == "relation"]
    ends = sorted((part[0] for part in parts if part), key=lambda part: part.ends[0] == _LEAST)
    if len(relations) != 2 or len(ends) != 2:
        return None
    lower, upper = ends
    if lower.ends[1] != _INFINITY or upper.ends[0] != _LEAST:
        return None
    return [Interval((lower.ends[0], upper.ends[1]), (lower.closed[0], upper.closed[1]))]


def _without(whole: Node, missing: Node) -> list[Interval] | None:
    """All real numbers but some points, or some intervals; an interval but points within it."""
    regions = _parts(whole)
    if regions is None or len(regions) != 1:
        return None
    (region,), points = regions, missing.kind == "set"
    parts = [Interval((x, x), _CLOSED) for x in items(missing)] if points else _parts(missing)
    if parts is None or (region != ALL and not (points and _are_within(region, parts))):
        return None
    with suppress(NoValueError, TypeError):
        parts = sorted(parts, key=lambda part: _place(part.ends[0]))
    limits = [_outside(region, 0), *parts, _outside(region, 1)]
    return [
        Interval((one.ends[1], other.ends[0]), (_is_kept(one, 1), _is_kept(other, 0)))
        for one, other in pairwise(limits)
        if one.ends[1] != other.ends[0]
    ]


def _outside(region: Interval, end: int) -> Interval:
    """What of the numbers outside a region touches one of its ends."""
    return Interval((region.ends[end],) * 2, (not region.closed[end],) * 2)


def _are_within(region: Interval, parts: Iterable[Interval]) -> bool:
    """Whether parts lie between the ends of a region, as far as these have values."""
    lower, upper = region.ends
    try:
        return all(_place(lower) < _place(part.ends[0]) < _place(upper) for part in parts)
    except (NoValueError, TypeError):
        return False


def _is_kept(missing: Interval, end: int) -> bool:
    """Whether the end of a missing interval stays, since it is none of it."""
    return not missing.closed[end] and missing.ends[end] not in (_LEAST, _INFINITY)


def _of_relation(node: Node) -> list[Interval] | None:  # noqa: C901, PLR0911 - a case for each kind
    signs, sides = node.text.split(), node.args
    if sides[0].kind == "call" and len(sides[0].text) == 1:  # f(x) >= 1
        name = sides[0].args[0]
        return _of_relation(Node("relation", (name, *sides[1:]), node.text))
    if signs == ["in"] and sides[0].kind == "name":
        return _parts(sides[1])
    if sides[0].kind == "call" and sides[0].text == "abs" and sides[0].args[0].kind == "name":
        return _of_modulus(sides[0].args[0], node)
    names = [n for n, side in enumerate(sides) if side.kind == "name" and side.unknowns]
    if len(names) != 1 or any(s.unknowns for n, s in enumerate(sides) if n != names[0]):
        return None
    if signs == ["ne"]:
        return _without(_REALS, Node("set", (sides[1 - names[0]],)))
    if len(signs) == 1 and signs[0] in ("<", ">", "le", "ge"):
        limit = sides[1 - names[0]]
        below = (signs[0] in ("<", "le")) == (names[0] == 0)
        closed = signs[0] in ("le", "ge")
        if below:
            return [Interval((_LEAST, limit), (False, closed))]
        return [Interval((limit, _INFINITY), (closed, False))]
    if len(signs) == 2 and names == [1]:
        if all(sign in ("<", "le") for sign in signs):
            return [Interval((sides[0], sides[2]), (signs[0] == "le", signs[1] == "le"))]
        if all(sign in (">", "ge") for sign in signs):
            return [Interval((sides[2], sides[0]), (signs[1] == "ge", signs[0] == "ge"))]
    return None


def _of_modulus(name: Node, node: Node) -> list[Interval] | None:
    """|x| < 2 and |x| > 2, with a limit above 0."""
    limit = node.args[1]
    if node.text not in ("<", ">", "le", "ge") or limit.unknowns or (rational(limit) or 1) <= 0:
        return None
    between = node.text in ("<", "le")
    lower = Node("relation", (Node("neg", (limit,)), name), node.text)
    upper = Node("relation", (name, limit), node.text)
    joined = Node("list", (lower, upper), "and" if between else "or")
    return _parts(joined)


def _place(end: Node) -> float:
    """Where an end lies, as a float; raises NoValueError for unknowns."""
    if end == _LEAST:
        return float("-inf")
    if end == _INFINITY or (end.kind == "neg" and end.args[0] == _LEAST):
        return float("inf")
    return float(value(end))


def _are_apart(ordered: list[Interval]) -> bool:
    for one, other in pairwise(ordered):
        upper, lower = _place(one.ends[1]), _place(other.ends[0])
        if upper > lower or (upper == lower and (one.closed[1] or other.closed[0])):
            return False
    return True
