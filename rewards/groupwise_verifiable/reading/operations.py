"""Operations that an expression leaves to compute, as it is written."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import gcd

from groupwise_verifiable.reading.form import coefficient, is_scientific, power_base
from groupwise_verifiable.reading.node import MARKS, Node, factors, integer, key, terms
from groupwise_verifiable.reading.value import rational

_IMAGINARY = Node("name", text="i")


def left_to_compute(node: Node) -> Counter[str]:
    """Returns, by kind, the operations in an expression that are not carried out.

    Fractions in lowest terms, mixed numbers, roots that are irrational and scientific notation are
    numbers, not operations; so are the terms and factors of an expression with unknowns, if no two
    of them can be joined.
    """
    return Counter(_operations(node))


def _operations(node: Node) -> Iterator[str]:  # noqa: C901 - a case for each kind
    kind, args = node.kind, node.args
    if kind in ("add", "neg"):
        yield from _in_sum(node)
        return
    if kind == "mul":
        yield from _in_product(node)
        return
    if kind == "div":
        yield from _in_quotient(node)
    elif kind == "pow":
        yield from _in_power(node)
    elif kind == "root":
        yield f"root {args[1].text}" if rational(node) is None else "a root of a power"
        if args[0].kind == "number" and "." in args[0].text:
            yield "a root of a decimal"
    elif kind == "call":
        yield node.text
        if node.text == "log" and len(args) > 1 and args[1].kind == "number":
            yield "log"  # it is a quotient of two
    elif kind == "pm":
        yield "sum"
    elif kind == "mixed":
        whole, above, below = (integer(part) for part in args)
        if None in (whole, above, below) or not 0 < (above or 0) < (below or 0):
            yield "quotient"
        return
    times = integer(args[1]) if kind == "pow" and args[0].unknowns else None
    for place, part in enumerate(args):
        repeated = max(1, min(times or 1, 20)) if place == 0 else 1
        yield from [*_operations(part)] * repeated


def _in_sum(node: Node) -> Iterator[str]:
    parts = terms(node)
    if len(parts) == 1:
        sign, inner = parts[0]
        if node.kind == "neg" and (sign == 1 or node.args[0].kind == "neg"):
            yield "sign"
        if node.kind == "neg" and inner.kind == "mul" and factors(inner)[0].kind == "neg":
            yield "sign"
        yield from _operations(inner)
        return
    kinds = Counter(_without_number(term) for _, term in parts)
    for count in kinds.values():
        yield from ["sum"] * (count - 1)
    yield from ["term"] * (len(parts) - 1)
    for _, term in parts:
        if rational(term) == 0:
            yield "sum"
        yield from _operations(term)


def _without_number(node: Node) -> object:
    """What like terms share: 2x and x/3 are like, as are all numbers."""
    if rational(node) is not None:
        return "number"
    if node.kind in ("neg", *MARKS):
        return _without_number(node.args[0])
    if node.kind == "div" and rational(node.args[1]) is not None:
        return _without_number(node.args[0])
    rest = [part for part in factors(node) if rational(part) is None]
    return key(rest[0]) if len(rest) == 1 else key(Node("mul", tuple(rest)))


def _in_product(node: Node) -> Iterator[str]:
    if is_scientific(node):
        return
    parts = factors(node)
    numbers = [part for part in parts if rational(part) is not None]
    if len(numbers) > 1:
        yield from ["product"] * (len(numbers) - 1)
    elif numbers and rational(numbers[0]) in (0, 1) and not _is_imaginary_unit(parts):
        yield "product"
    if any(part.kind == "neg" for part in parts[1:]):
        yield "sign"
    bases = Counter(key(base) for part in parts if (base := power_base(part)) is not None)
    for count in bases.values():
        yield from ["product"] * (count - 1)
    for part in parts:
        yield from _operations(part)


def _is_imaginary_unit(parts: Sequence[Node]) -> bool:
    """Whether a product is 1i, as a coefficient may be written."""
    return len(parts) == 2 and parts[1] == _IMAGINARY and rational(parts[0]) == 1


def _in_quotient(node: Node) -> Iterator[str]:
    above, below = node.args
    numbers = [rational(part) for part in node.args]
    if None not in numbers:
        integers = [integer(part) for part in node.args]
        plain = None not in integers and all(_is_plain(part) for part in node.args)
        if not plain or abs(integers[1] or 0) < 2 or (integers[0] or 0) % (integers[1] or 1) == 0:
            yield "quotient"
    elif (divisor := integer(below)) is not None:
        multiple = coefficient(above)
        if abs(divisor) < 2 or (multiple and multiple % divisor == 0):
            yield "quotient"
    if node.args[1].unknowns:
        pair = [coefficient(part) for part in node.args]
        if None not in pair and gcd(*(n or 1 for n in pair)) > 1:
            yield "quotient"
        if any("." in part.text for side in node.args for part in factors(side)):
            yield "quotient"
    if any(part.kind == "div" for part in (*factors(above), *factors(below))):
        yield "quotient"
    shared = [
        {key(base) for part in factors(side) if (base := power_base(part) or _sum(part))}
        for side in node.args
    ]
    if shared[0] & shared[1]:
        yield "quotient"


def _sum(node: Node) -> Node | None:
    return node if node.kind == "add" else node.args[0] if node.kind == "pow" else None


def _is_plain(node: Node) -> bool:
    """Whether an integer is written without zeros before it."""
    return not node.text.startswith("0") or node.text == "0"


def _in_power(node: Node) -> Iterator[str]:
    base, exponent = node.args
    number, power = rational(base), rational(exponent)
    if is_scientific(node):
        return
    if number is not None and power is not None:
        whole = power.denominator == 1 or rational(node) is not None
        yield "power" if whole else f"root {power.denominator}"
        if power in (0, 1):
            yield "product"
    elif power in (0, 1):
        yield "product"
    elif power is not None and power.denominator == 1:
        if base.kind in ("root", "pow", "div"):
            yield "power"
        if (not base.unknowns and base.kind != "name") or base == Node("name", text="i"):
            yield "power"
        if base.kind == "mul" and any(rational(part) is not None for part in factors(base)):
            yield "power"
    elif power is not None:
        yield f"root {power.denominator}"
