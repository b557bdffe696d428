"""Numbers in text: the last number of a text, or a text that is a number.

Only a number that stands by itself counts. An operand ("2+3", "2^5") or a part of something longer
("12:05", "0x5") is no result; a text whose last number is of that kind has no last number: the one
before it does not count instead.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from groupwise_verifiable.reading.form import notation, reducible
from groupwise_verifiable.reading.grammar import read
from groupwise_verifiable.reading.items import unlabelled
from groupwise_verifiable.reading.marks import Marked, peeled
from groupwise_verifiable.reading.measures import Meanings
from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.operations import left_to_compute
from groupwise_verifiable.reading.relations import end_of_chain
from groupwise_verifiable.reading.signs import half_width
from groupwise_verifiable.reading.value import rational
from groupwise_verifiable.reading.words import LARGE

_SIGNS = r"[-+\u2212\u2013]"
_CURRENCY = r"\\?[$\u20ac\u00a3]"  # between a sign and its number: -$5
# An ASCII number: thousands in threes or plain digits, decimals, a short exponent, a denominator.
# A sign counts only where no word, digit or bracket precedes it.
# Exponents have at most three digits, so that no number can fill the memory.
_NUMBER = re.compile(
    rf"(?:(?<![A-Za-z0-9_)\].]){_SIGNS}(?:{_CURRENCY}(?=[0-9]))?)?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
    r"(?: ?/ ?[0-9]+)?"
)
# If the text before a number ends in this, the number is no result. Dashes and stars also precede
# results, as list marks and emphasis, so they count only after a digit.
_PART = re.compile(
    r"(?:[\w)\]}%!][^\S\n]*[+/\u00b1\u00b7\u00d7\u00f7\u2215]+"  # 2 + 3, x/3
    r"|\d[)\]}]*[^\S\n]*(?:[-\u2212\u2013]+|\*+)"  # 2 - 3, (2)*3
    r"|\\(?:times|cdot|div|pm|sqrt)|[\^\u00b1\u221a])(?:[^\S\n]|[${(])*\Z"
    r"|(?<![A-Za-z])[A-Z]\Z"  # B18
    r"|(?:_|\d|\d[.,:'_\u2019\u00a0\u2009\u202f]|\d\{,\}|\d[A-Za-z]+[-+]?|\}|\}\s*\{)\{?\Z"
    rf"|{_SIGNS}{{2}}\Z"
)
# The exponent of a unit, as in "5 m^2" and "5\\text{ cm}^{3}", is not the last number.
_UNIT_EXPONENT = re.compile(
    r"(?<=\d)((?:\s|~|\\[, ;])*"
    r"(?:[kcmd]?m|ft|in|yd|mi|\\(?:text|mathrm)\s*\{[^{}\d]{1,30}\}))"
    r"\s*\^\s*(?:[23](?!\d)|\{\s*[23]\s*\})"
)
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!)(?=[0-9]{3}(?![0-9]))")
_LARGE = re.compile(rf"\s*(?:{'|'.join(LARGE)}|k|lakh|crore|bn)\b", re.IGNORECASE)
_CHANGED = re.compile(
    r"(?:\b(?:minus|negative|(?:half|square|root|cube|reciprocal) of|under|over|below|above"
    r"|(?:less|more|fewer|greater) than|at (?:least|most)|between [0-9.,]+ and)"
    r"|sqrt\(|\u8d1f|\u6839\u53f7)\s*\Z",
    re.IGNORECASE,
)
_BEFORE = 200  # characters before a number that are searched
# By default Python refuses to convert longer digit strings, which takes quadratic time.
_LONGEST_NUMBER = 4000


@dataclass(frozen=True)
class Number:
    """node: how it is written; is_fraction: as 3/4, not 0.75; is_reduced: not as 6/8 or 5/1;
    is_percent: with this sign after it; units: see `units_in`."""

    value: Fraction
    node: Node
    is_fraction: bool = False
    is_reduced: bool = True
    is_percent: bool = False
    units: tuple[Meanings, ...] = ()


def last_number(text: str) -> Number | None:
    """Returns the last number of the text; None if there is none or it does not stand by itself."""
    text = _UNIT_EXPONENT.sub(r"\1", _THOUSANDS.sub(",", half_width(text)))
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    return None if last is None or _is_part(text, last) else _number(last.group())


def whole_number(text: str) -> Number | None:
    """Returns the number if the whole text is one, as the reward `math` reads it, else None.

    Nothing may be left to compute in it. Units, currencies and the signs of LaTeX and Markdown
    around it are allowed, so is a name before it: `x = 18`.
    """
    if len(text) > _LONGEST_NUMBER or text.lstrip().startswith("~"):  # about
        return None
    node = read(text)
    node = None if node is None else end_of_chain(unlabelled(node))
    if node is None:
        return None
    marked = peeled(node)
    value = rational(marked.node)
    if value is None or marked.is_changed(Marked(marked.node)):
        return None
    if left_to_compute(marked.node) or marked.degrees:
        return None
    reduced = not any(reducible(marked.node))
    return Number(
        value * marked.factor,
        marked.node,
        is_fraction=notation(marked.node) == "fraction",
        is_reduced=reduced,
        is_percent=marked.percent,
        units=marked.units,
    )


def gold_number(text: str) -> Number | None:
    """Returns the number of a gold answer, which may follow "####" as in GSM8K; else None.

    White space around it, a dollar sign before it and a full stop after it are allowed.
    """
    stripped = text.rpartition("####")[2].strip().removeprefix("$").removesuffix(".")
    return _number(stripped) if _NUMBER.fullmatch(stripped) else None


def _is_part(text: str, match: re.Match[str]) -> bool:
    sign = re.match(_SIGNS, match.group()) is not None
    before = text[max(0, match.start() - _BEFORE) : match.start() + sign]
    after = text[match.end() : match.end() + 1]
    if after and after in "*_":  # emphasis: **5**
        before = before.rstrip("*_")
    if "/" in match.group() and re.search(r"[0-9] \Z", before):  # 1 1/2 is neither 1 nor 1/2
        return True
    if _LARGE.match(text, match.end()) or _CHANGED.search(before):
        return True
    return after.isdigit() or _PART.search(before) is not None


def _number(literal: str) -> Number | None:
    """The number that `_NUMBER` matched; None where it has no value (1/0) or is too long."""
    if len(literal) > _LONGEST_NUMBER:
        return None
    plain = re.sub(_CURRENCY, "", literal.replace(",", "").replace(" ", ""))
    plain = plain.replace("\u2212", "-").replace("\u2013", "-")
    numerator, _, denominator = plain.partition("/")
    below = Fraction(denominator) if denominator else Fraction(1)
    if not below:
        return None
    value = Fraction(numerator) / below
    node = read(plain) or Node("number", text=plain)
    reduced = not denominator or denominator == str(value.denominator) != "1"
    return Number(value, node, bool(denominator), reduced)
