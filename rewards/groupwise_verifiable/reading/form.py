"""The form of an expression: what it leaves to compute, and whether it is a sum or a product."""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from math import gcd

from groupwise_verifiable.reading.node import Node, factors, key, terms
from groupwise_verifiable.reading.value import rational

_MARKS = ("unit", "label", "money", "percent", "degrees")


def left_to_compute(node: Node) -> Counter[str]:
    """Returns, by kind, the operations in an expression that are not carried out.

    Fractions in lowest terms, mixed numbers, roots that are irrational and scientific notation are
    numbers, not operations; so are the terms and factors of an expression with unknowns, if no two
    of them can be joined.
    """
    return Counter(_operations(node))


def reducible(node: Node) -> Iterator[Fraction]:
    """Yields the values of fractions that are not in lowest terms, and of roots like `\\sqrt{12}`.

    They are numbers, but no answers where the prompt holds them or asks for the simplest form.
    """
    for part in node.walk():
        if part.kind == "div":
            above, below = map(_integer, part.args)
            if above is not None and below and gcd(above, below) > 1:
                yield Fraction(above, below)
            elif below and any(gcd(n, below) > 1 for n in (_coefficient(part.args[0]),) if n):
                yield Fraction(below)
        elif part.kind in ("root", "pow"):
            is_square = part.args[1].text == "2" or rational(part.args[1]) == Fraction(1, 2)
            radicand = _integer(part.args[0]) if is_square else None
            if part.kind == "pow" and part.args[1].text == "2":
                radicand = None
            if radicand and any(radicand % (n * n) == 0 for n in range(2, 100)):
                yield Fraction(radicand)


def compounds(node: Node) -> int:
    """Returns how many sums are factors, as often as they are: 2 for `x(x+1)^2`, 0 for `2x+1`.

    A sum as a whole is none, nor is one over a number, with a sign or times a half: `(x+1)/2` is
    the sum x/2 + 1/2. Denominators, roots and arguments of functions do not count.
    """
    sums = terms(_whole(node))
    if len(sums) > 1:
        return sum(_compound_factors(term) for _, term in sums)
    return _compound_factors(sums[0][1])


def outside(node: Node) -> Counter[str]:
    """Returns the names, and the integer, that a product has beside its sums: those of 3xy(x-y)."""
    node = _whole(node)
    node = node.args[0] if node.kind == "div" else node
    names: Counter[str] = Counter()
    for part in factors(node):
        base = _base(part)
        if base is not None:
            times = _integer(part.args[1]) if part.kind == "pow" else 1
            names[base.text] += times or 1
        elif (integer := _integer(part)) is not None and abs(integer) > 1:
            names[str(abs(integer))] += 1
    return names


def sums(node: Node) -> list[Node]:
    """Returns the sums that are factors of a product, as often as they are."""
    node = _whole(node)
    node = node.args[0] if node.kind == "div" else node
    every: list[Node] = []
    for part in factors(node):
        base = part.args[0] if part.kind == "pow" else part
        times = _integer(part.args[1]) if part.kind == "pow" else 1
        if base.kind == "add" and base.unknowns:
            every += [base] * max(1, min(times or 1, 20))
    return every


def _is_root(node: Node) -> bool:
    power = rational(node.args[1]) if node.kind == "pow" else None
    return node.kind == "root" or (power is not None and power.denominator > 1)


def has_root_below(node: Node) -> bool:
    """Returns whether a denominator, or what a negative power stands for, has a root."""
    for part in node.walk():
        below = part.args[1] if part.kind == "div" else None
        if below is not None and any(_is_root(n) for n in below.walk()):
            return True
        if part.kind == "root" and any(n.kind == "div" for n in part.args[0].walk()):
            return True
        exponent = rational(part.args[1]) if part.kind == "pow" else None
        if exponent is not None and exponent < 0 and exponent.denominator > 1:
            return True
    return False


def is_scientific(node: Node) -> bool:
    """Returns whether a node is a number such as `2 \\times 10^6`, or a high power of ten."""
    if node.kind == "neg":
        return is_scientific(node.args[0])
    if node.kind == "mul" and len(node.args) == 2:
        for one, other in (node.args, node.args[::-1]):
            exponent = _power_of_ten(other)
            if one.kind == "number" and exponent is not None and abs(exponent) > 1:
                return True
        return False
    exponent = _power_of_ten(node)
    return exponent is not None and not -3 < exponent < 4


def _power_of_ten(node: Node) -> int | None:
    if node.kind == "pow" and node.args[0] == Node("number", text="10"):
        return _integer(node.args[1])
    return None


def _whole(node: Node) -> Node:
    """The node without signs, numeric divisors and factors 1/n before all of it."""
    if node.kind in ("neg", *_MARKS):
        return _whole(node.args[0])
    if node.kind == "div" and not node.args[1].unknowns:
        return _whole(node.args[0])
    if node.kind == "mul":
        rest = [part for part in factors(node) if not _is_share(part)]
        if len(rest) == 1:
            return _whole(rest[0])
    return node


def _is_share(node: Node) -> bool:
    number = rational(node)
    return number is not None and abs(number.numerator) == 1 < number.denominator


def _compound_factors(node: Node) -> int:
    if node.kind in ("neg", *_MARKS):
        return _compound_factors(node.args[0])
    if node.kind == "div":
        return _compound_factors(node.args[0])
    if node.kind == "mul":
        return sum(_compound_factors(part) for part in factors(node))
    if node.kind == "pow":
        exponent = _integer(node.args[1])
        return _compound_factors(node.args[0]) * (exponent if exponent and exponent > 0 else 1)
    return int(node.kind == "add" and bool(node.unknowns))


def _integer(node: Node) -> int | None:
    if node.kind == "neg":
        number = _integer(node.args[0])
        return None if number is None else -number
    return int(node.text) if node.kind == "number" and node.text.isdigit() else None


def _coefficient(node: Node) -> int | None:
    """The integer factor of a product, or the common one of a sum's terms."""
    parts = terms(node)
    if len(parts) > 1:
        numbers = [_coefficient(term) or 1 for _, term in parts]
        return gcd(*numbers)
    numbers = [n for part in factors(parts[0][1]) if (n := _integer(part)) is not None]
    return numbers[0] if numbers else None


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
        whole, above, below = (_integer(part) for part in args)
        if None in (whole, above, below) or not 0 < (above or 0) < (below or 0):
            yield "quotient"
        return
    times = _integer(args[1]) if kind == "pow" and args[0].unknowns else None
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
    if node.kind in ("neg", *_MARKS):
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
    elif numbers and rational(numbers[0]) in (0, 1):
        yield "product"
    if any(part.kind == "neg" for part in parts[1:]):
        yield "sign"
    bases = Counter(key(base) for part in parts if (base := _base(part)) is not None)
    for count in bases.values():
        yield from ["product"] * (count - 1)
    for part in parts:
        yield from _operations(part)


def _base(node: Node) -> Node | None:
    """The name that a factor is a power of, also in a quotient's numerator."""
    if node.kind == "pow":
        return _base(node.args[0])
    return node if node.kind == "name" else None


def _in_quotient(node: Node) -> Iterator[str]:
    above, below = node.args
    numbers = [rational(part) for part in node.args]
    if None not in numbers:
        integers = [_integer(part) for part in node.args]
        plain = None not in integers and all(_is_plain(part) for part in node.args)
        if not plain or abs(integers[1] or 0) < 2 or (integers[0] or 0) % (integers[1] or 1) == 0:
            yield "quotient"
    elif (divisor := _integer(below)) is not None:
        coefficient = _coefficient(above)
        if abs(divisor) < 2 or (coefficient and coefficient % divisor == 0):
            yield "quotient"
    if node.args[1].unknowns:
        pair = [_coefficient(part) for part in node.args]
        if None not in pair and gcd(*(n or 1 for n in pair)) > 1:
            yield "quotient"
        if any("." in part.text for side in node.args for part in factors(side)):
            yield "quotient"
    if any(part.kind == "div" for part in (*factors(above), *factors(below))):
        yield "quotient"
    shared = [
        {key(base) for part in factors(side) if (base := _base(part) or _sum(part))}
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
