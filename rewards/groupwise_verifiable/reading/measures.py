"""Units and currencies: what they measure and of what size they are, alone and in products."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import isclose, prod

from groupwise_verifiable.reading.unit_table import PREFIXES, UNITS

_POWERS = {"area": {"length": 2}, "volume": {"length": 3}}
_BEFORE = {"square": 2, "sq": 2, "\u5e73\u65b9": 2, "cubic": 3, "cu": 3, "\u7acb\u65b9": 3}
"""Words of a power before its unit."""
_BEHIND = {"squared": 2, "cubed": 3}
_PIECE = re.compile(
    r"[A-Za-z\u00b5\u03bc\u03a9]+|[$\u00a2\u20ac\u00a3\u00a5\u20b9]|[\u4e00-\u9fff]+"
    r"|\^[\s{]*-?[0-9]+|[0-9]+|[/*()-]|\\(?:cdot|times)|[^\s.}~]"
)
_NOON = re.compile(r"\b([apAP])\.?\s?[mM]\b\.?")
_TEMPERATURE = re.compile(
    r"(?:\bdegrees?|\u00b0|\^\s*\\circ)\s*(?=(?:celsius|fahrenheit|[CF])(?![a-z]))", re.IGNORECASE
)
_IN_PROSE = frozenset({"in", "am"})  # words that are units only behind a number


@dataclass(frozen=True)
class Unit:
    """dimension: what it measures, as powers of base quantities; size: in SI units."""

    dimension: frozenset[tuple[str, int]]
    size: Fraction

    def equals(self, other: "Unit") -> bool:
        """Returns whether two units are one: 1 N m is 1 J."""
        return self.dimension == other.dimension and isclose(self.size, other.size, rel_tol=1e-9)

    @property
    def bases(self) -> frozenset[str]:
        """The base quantities of its dimension."""
        return frozenset(base for base, _ in self.dimension)


Meanings = frozenset[Unit]
"""What one unit as it is written may be: C is a coulomb, or a degree Celsius."""
Factors = list[tuple[Meanings, int]]
_MOST = 8  # factors of a product


def is_unit(word: str) -> bool:
    """Returns whether a word, or a single letter, is the sign or the name of a unit."""
    return bool(_meanings(word)[0])


def is_currency(word: str) -> bool:
    """Returns whether a word is the sign or the name of a currency."""
    return any(unit.bases == {"money"} for unit in _meanings(word)[0])


def is_power(word: str) -> bool:
    """Returns whether a word before or behind a unit says its power."""
    return word in _BEFORE or word in _BEHIND


def units_in(text: str, *, prose: bool = False) -> tuple[Meanings, ...]:
    """Returns the units that a text names, one after another: J/(kg K), square feet, kg m s^-2.

    prose: whether a single letter is a unit only behind a number, and words side by side are no
    product of units.
    """
    return tuple(map(_product, _products(text, prose=prose)))


def named_units(prompt: str) -> frozenset[Unit]:
    """Returns the units that a prompt names, and those of which they are products."""
    every: set[Unit] = set()
    for factors in _products(prompt, prose=True):
        every |= _product(factors).union(*(meanings for meanings, _ in factors))
    return frozenset(every)


def leading_unit(text: str, names: frozenset[str]) -> str:
    """Returns the unit with which a text begins, as it follows "in" or "how many"; else "".

    names: letters that are unknowns and no units.
    """
    match = re.match(r"\s*\(?(?:the )?([^\s,;:?!)]+(?: ?[^\s,;:?!)]+){0,4})", text)
    words = match[1].split(" ") if match else []
    for count in range(len(words), 0, -1):
        part = " ".join(words[:count]).strip(".$")
        pieces = [piece for piece in _PIECE.findall(part) if piece.isalpha() and piece != "per"]
        if (
            pieces
            and not part[0].isdigit()
            and all(is_unit(piece) or is_power(piece) for piece in pieces)
        ):
            is_one = len(units_in(part)) == 1 and part not in names
            if is_one and (len(part) > 1 or count == len(words)):
                return part
    return ""


def composes(unit: Unit, named: Collection[Unit]) -> bool:
    """Returns whether a unit is a product of powers of these, or of SI units where none is named.

    So cm^2 goes with cm, and N with kg, m and s; m^2 does not go with cm.
    """
    sizes = {
        base: [float(one.size) for one in named if one.dimension == {(base, 1)}] or [1.0]
        for base in unit.bases
    }
    powers = sorted(unit.dimension)
    return any(
        isclose(prod(size**power for size, (_, power) in zip(chosen, powers, strict=True)),
                unit.size, rel_tol=1e-6)
        for chosen in product(*(sizes[base] for base, _ in powers))
    )  # fmt: skip


def _products(text: str, *, prose: bool) -> Iterator[Factors]:  # noqa: C901 - a case for each kind
    """The products of units in a text, as their factors and the powers of these."""
    text = _TEMPERATURE.sub(" ", _NOON.sub(lambda match: f"{match[1].lower()}m", text))
    factors: Factors = []
    power, below, joined, before = 1, False, False, ""
    for piece in (*_PIECE.findall(text), ""):
        meanings, own_power = _meanings(piece)
        if prose and (len(piece) == 1 or piece in _IN_PROSE) and piece.isalpha():
            counts = before.isdigit() or (factors and (joined or before.startswith("^")))
            meanings = meanings if counts else frozenset()
        if meanings:
            beside = not joined and factors and prose and len(before) > 3
            if beside:
                yield factors
                factors, below = [], False
            factors.append((meanings, power * own_power * (-1 if below else 1)))
            power, joined = 1, False
        elif piece in _BEFORE:
            power = _BEFORE[piece]
        elif factors and (piece in _BEHIND or (piece[:1] == "^" and piece[-1].isdigit())):
            exponent = _BEHIND.get(piece) or int(piece[1:].replace("{", ""))
            factors[-1] = (factors[-1][0], factors[-1][1] * exponent)
        elif (factors and piece == "/") or piece == "per":
            below = joined = True
        elif factors and piece in ("*", r"\cdot", r"\times", "-"):
            joined = True
        elif piece not in ("(", ")"):
            if factors:
                yield factors[:_MOST]
            factors, below, joined, power = [], False, False, 1
        before = piece


def _product(factors: Factors) -> Meanings:
    every = set()
    for units in product(*(meanings for meanings, _ in factors)):
        powers: Counter[str] = Counter()
        size = Fraction(1)
        for unit, (_, power) in zip(units, factors, strict=True):
            times = max(-9, min(9, power))
            size *= unit.size**times
            for base, count in unit.dimension:
                powers[base] += times * count
        dimension = frozenset((base, count) for base, count in powers.items() if count)
        every.add(Unit(dimension, size))
    return frozenset(every)


@lru_cache(maxsize=4096)
def _meanings(word: str) -> tuple[Meanings, int]:
    """What a word may be as a unit, and its power: 2 for square metres in one word."""
    power = _BEFORE.get(word[:2], 1) if len(word) > 2 and not word.isascii() else 1
    plain = word[2:] if power > 1 else word
    lower = plain.lower()
    long = (lower, lower.removesuffix("s")) if len(lower) > 2 and lower != "has" else ()
    return next((_TABLE[form] for form in (plain, *long) if form in _TABLE), frozenset()), power


def _read_table() -> dict[str, Meanings]:
    table: dict[str, set[Unit]] = {}
    for line in UNITS.strip().splitlines():
        measured, size, spellings = (part.strip() for part in line.split("|"))
        unit = Unit(_dimension(measured), prod(_sizes(size.rstrip("*")), start=Fraction(1)))
        rare = size.endswith("**")
        signs, _, names = spellings.partition(":")
        for spelling in (*signs.split(), *names.split()):
            table.setdefault(spelling, set()).add(unit)
        for forms, times in PREFIXES if size.endswith("*") else ():
            *short, name = forms.split()
            if name in ("centi", "deci", "hecto") and not rare:
                continue
            scaled = Unit(unit.dimension, unit.size * Fraction(times))
            prefixed = [sign + each for sign in short for each in signs.split()]
            for spelling in (*prefixed, *(name + each for each in names.split())):
                table.setdefault(spelling, set()).add(scaled)
    return {spelling: frozenset(units) for spelling, units in table.items()}


def _dimension(measured: str) -> frozenset[tuple[str, int]]:
    powers: dict[str, int] = {}
    for part in measured.split():
        match = re.fullmatch(r"([a-z]+)(-?[0-9]*)", part)
        assert match is not None
        powers |= _POWERS.get(match[1], {match[1]: int(match[2] or 1)})
    return frozenset(powers.items())


def _sizes(size: str) -> Iterator[Fraction]:
    above, _, below = size.partition("/")
    yield Fraction(above)
    if below:
        yield 1 / Fraction(below)


_TABLE = _read_table()
MECHANICAL = frozenset({"length", "mass", "time"})
QUANTITIES = {
    name: next(iter(_product([(_TABLE[sign], power) for sign, power in factors]))).dimension
    for name, factors in (
        ("area", [("m", 2)]),
        ("volume", [("m", 3)]),
        ("speed", [("m", 1), ("s", -1)]),
        ("velocity", [("m", 1), ("s", -1)]),
        ("acceleration", [("m", 1), ("s", -2)]),
        ("force", [("N", 1)]),
        ("energy", [("J", 1)]),
        ("power", [("W", 1)]),
        ("density", [("kg", 1), ("m", -3)]),
        *((name, [("m", 1)]) for name in ("length", "distance", "height", "perimeter")),
        *((name, [("m", 1)]) for name in ("hypotenuse", "radius", "diameter", "circumference")),
    )
}
"""Quantities that prompts ask for by name, and their dimensions."""
DEGREE = next(iter(_TABLE["degree"]))
RADIAN = next(iter(_TABLE["radian"]))
