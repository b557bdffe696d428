"""The form of an expression: a sum or a product, in lowest terms, a number in which notation."""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from math import gcd

from groupwise_verifiable.reading.node import MARKS, Node, factors, integer, terms
from groupwise_verifiable.reading.value import rational


def reducible(node: Node) -> Iterator[Fraction]:
    """Yields the values of fractions that are not in lowest terms, and of roots like `\\sqrt{12}`.

    They are numbers, but no answers where the prompt holds them or asks for the simplest form.
    """
    for part in node.walk():
        if part.kind == "div":
            above, below = map(integer, part.args)
            if above is not None and below and gcd(above, below) > 1:
                yield Fraction(above, below)
            elif below and any(gcd(n, below) > 1 for n in (coefficient(part.args[0]),) if n):
                yield Fraction(below)
        elif part.kind in ("root", "pow"):
            is_square = part.args[1].text == "2" or rational(part.args[1]) == Fraction(1, 2)
            radicand = integer(part.args[0]) if is_square else None
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
        base = power_base(part)
        if base is not None:
            times = integer(part.args[1]) if part.kind == "pow" else 1
            names[base.text] += times or 1
        elif (value := integer(part)) is not None and abs(value) > 1:
            names[str(abs(value))] += 1
    return names


def sums(node: Node) -> list[Node]:
    """Returns the sums that are factors of a product, as often as they are."""
    node = _whole(node)
    node = node.args[0] if node.kind == "div" else node
    every: list[Node] = []
    for part in factors(node):
        base = part.args[0] if part.kind == "pow" else part
        times = integer(part.args[1]) if part.kind == "pow" else 1
        if base.kind == "add" and base.unknowns:
            every += [base] * max(1, min(times or 1, 20))
    return every


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


def unmarked(node: Node) -> Node:
    """Returns a node without units, words and currencies around it."""
    while node.kind in ("unit", "label", "money"):
        node = node.args[0]
    return node


def notation(node: Node) -> str:
    """Returns the notation of a number: integer, decimal, fraction, mixed, percent, scientific."""
    node = unmarked(node)
    if node.kind == "neg":
        return notation(node.args[0])
    if node.kind == "number":
        return "decimal" if node.text.partition(".")[2].strip("0") else "integer"
    if is_scientific(node):
        digits = next((part for part in node.args if part.kind == "number"), None)
        normal = digits is None or 1 <= float(digits.text) < 10 or node.kind == "pow"
        return "scientific" if normal else "expression"
    if node.kind == "div" and all(part.kind in ("number", "neg") for part in node.args):
        return "fraction"
    return node.kind if node.kind in ("mixed", "percent", "repeating") else "expression"


def coefficient(node: Node) -> int | None:
    """Returns the integer factor of a product, or the common one of a sum's terms."""
    parts = terms(node)
    if len(parts) > 1:
        numbers = [coefficient(term) or 1 for _, term in parts]
        return gcd(*numbers)
    numbers = [n for part in factors(parts[0][1]) if (n := integer(part)) is not None]
    return numbers[0] if numbers else None


def power_base(node: Node) -> Node | None:
    """Returns the name that a factor is a power of, also in a quotient's numerator."""
    if node.kind == "pow":
        return power_base(node.args[0])
    return node if node.kind == "name" else None


def _is_root(node: Node) -> bool:
    power = rational(node.args[1]) if node.kind == "pow" else None
    return node.kind == "root" or (power is not None and power.denominator > 1)


def _power_of_ten(node: Node) -> int | None:
    if node.kind == "pow" and node.args[0] == Node("number", text="10"):
        return integer(node.args[1])
    return None


def _whole(node: Node) -> Node:
    """The node without signs, numeric divisors and factors 1/n before all of it."""
    if node.kind in ("neg", *MARKS):
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
    if node.kind in ("neg", *MARKS):
        return _compound_factors(node.args[0])
    if node.kind == "div":
        return _compound_factors(node.args[0])
    if node.kind == "mul":
        return sum(_compound_factors(part) for part in factors(node))
    if node.kind == "pow":
        exponent = integer(node.args[1])
        return _compound_factors(node.args[0]) * (exponent if exponent and exponent > 0 else 1)
    return int(node.kind == "add" and bool(node.unknowns))
