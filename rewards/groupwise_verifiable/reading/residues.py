r"""Congruences: x \equiv 2, 3 (mod 5), 5 (mod 7), and the numbers 7k + 5."""

from dataclasses import dataclass

from groupwise_verifiable.reading.items import items
from groupwise_verifiable.reading.node import Node, integer, number
from groupwise_verifiable.reading.value import NoValueError, value


@dataclass(frozen=True)
class Residues:
    """values: the residues; modulus: of all of them; names: what is congruent to them, if named."""

    values: frozenset[int]
    modulus: int
    names: frozenset[str]

    def equals(self, other: "Residues") -> bool:
        """Returns whether two congruences are one; either may leave its name out."""
        named = not self.names or not other.names or self.names == other.names
        return named and (self.values, self.modulus) == (other.values, other.modulus)


def residues(node: Node) -> Residues | None:
    """Returns the residues of a congruence, or of congruences of one modulus; else None."""
    parts = node.args if node.kind == "list" else (node,)
    moduli = {integer(part.args[1]) for part in parts if part.kind == "modulo"}
    modulus = moduli.pop() if len(moduli) == 1 else None
    if parts[-1].kind != "modulo" or modulus is None or modulus < 2:
        return None
    stated = [part.args[0] if part.kind == "modulo" else part for part in parts]
    return _residues(stated, modulus)


def progression(node: Node, modulus: int) -> Residues | None:
    """Returns the residue of the numbers 7k + 5, or x = 7k + 5; None where the step is another."""
    side = node.args[-1] if node.kind == "relation" else node
    if len(side.unknowns) != 1 or (node.kind == "relation" and node.text != "="):
        return None
    (letter,) = side.unknowns
    try:
        first, second = (value(side, {letter: value(number(n))}) for n in (0, 1))
        is_linear = value(side, {letter: value(number(5))}) - first == 5 * (second - first)
    except NoValueError:
        return None
    if abs(second - first) != modulus or not is_linear or first.denominator != 1:
        return None
    names = node.args[0].unknowns if node.kind == "relation" else frozenset[str]()
    return Residues(frozenset({int(first) % modulus}), modulus, names)


def _residues(stated: list[Node], modulus: int) -> Residues | None:
    names, values = frozenset[str](), set[int]()
    for part in stated:
        sides = part.args if part.kind == "relation" else (part,)
        if part.kind == "relation" and (part.text not in ("equiv", "=") or len(sides) > 2):
            return None
        names |= sides[0].unknowns if len(sides) > 1 else frozenset()
        whole = [integer(each) for each in items(sides[-1])]
        if None in whole:
            return None
        values |= {n % modulus for n in whole if n is not None}
    return Residues(frozenset(values), modulus, names)
