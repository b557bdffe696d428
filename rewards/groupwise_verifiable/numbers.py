"""Numbers in text: its last one, or the one that it is.

A number counts where it stands by itself. What is an operand ("2+3", "2^5"), or a part of something
longer ("12:05", "0x5"), names no result; a text that ends in one has no last number, rather than
the one before.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_SIGNS = r"[-+\u2212\u2013]"
_CURRENCY = r"\\?[$\u20ac\u00a3]"  # between a sign and its number: -$5
# An ASCII number: thousands in threes or plain digits, decimals, a short exponent, a denominator.
# A sign counts only where no word, digit or bracket stands before it.
# Exponents stop at three digits, so that no text can ask for a number that fills the memory.
_NUMBER = re.compile(
    rf"(?:(?<![\w)\].]){_SIGNS}(?:{_CURRENCY}(?=[0-9]))?)?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
    r"(?: ?/ ?[0-9]+)?"
)
# What may end the text before a number that is no result. Dashes and stars stand before results,
# too, as list marks and for emphasis, so they need a digit before them.
_PART = re.compile(
    r"(?:[\w)\]}%!][^\S\n]*[+/\u00b1\u00b7\u00d7\u00f7\u2215]+"  # 2 + 3, x/3
    r"|\d[)\]}]*[^\S\n]*(?:[-\u2212\u2013]+|\*+)"  # 2 - 3, (2)*3
    r"|\\(?:times|cdot|div|pm|sqrt)|[\^\u00b1\u221a])(?:[^\S\n]|[${(])*\Z"
    r"|(?:_|\d|\d[.,:'_\u2019\u00a0\u2009\u202f]|\d\{,\}|\d[A-Za-z]+[-+]?|\}|\}\s*\{)\{?\Z"
    rf"|{_SIGNS}{{2}}\Z"
)
# The exponent of a unit, as in "5 m^2" and "5\\text{ cm}^{3}", is no number of its own.
_UNIT_EXPONENT = re.compile(
    r"(?<=\d)((?:\s|~|\\[, ;])*"
    r"(?:[kcmd]?m|ft|in|yd|mi|\\(?:text|mathrm)\s*\{[^{}\d]{1,30}\}))"
    r"\s*\^\s*(?:[23](?!\d)|\{\s*[23]\s*\})"
)
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!)(?=[0-9]{3}(?![0-9]))")
_BEFORE = 200  # characters that are looked at before a number
# Python refuses to convert longer digit strings by default, since that takes quadratic time.
_LONGEST_NUMBER = 4000


@dataclass(frozen=True)
class Number:
    """A number and how it is written, without white space."""

    value: Fraction
    literal: str

    @property
    def is_fraction(self) -> bool:
        """Whether it is written as one: 3/4, not 0.75."""
        return "/" in self.literal

    @property
    def is_reduced(self) -> bool:
        """Whether it is written as 3/4 is, not as 6/8 or 5/1; True where it is no fraction."""
        _, _, denominator = self.literal.partition("/")
        return not denominator or (denominator == str(self.value.denominator) != "1")


def last_number(text: str) -> Number | None:
    """Returns the last number of the text; None when it has none, or when that is only a part."""
    text = _UNIT_EXPONENT.sub(r"\1", _THOUSANDS.sub(",", text))
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    return None if last is None or _is_part(text, last) else _number(last.group())


def whole_number(text: str) -> Number | None:
    """Returns the number that the whole text is, None when it is anything else.

    White space around it, a dollar sign before it and a full stop after it are allowed.
    """
    stripped = text.strip().removeprefix("$").removesuffix(".")
    return _number(stripped) if _NUMBER.fullmatch(stripped) else None


def gold_number(text: str) -> Number | None:
    """Returns the number that a gold answer is, or that stands after its "####", as in GSM8K."""
    return whole_number(text.rpartition("####")[2])


def _is_part(text: str, match: re.Match[str]) -> bool:
    sign = re.match(_SIGNS, match.group()) is not None
    before = text[max(0, match.start() - _BEFORE) : match.start() + sign]
    after = text[match.end() : match.end() + 1]
    if after and after in "*_":  # emphasis: **5**
        before = before.rstrip("*_")
    if "/" in match.group() and re.search(r"[0-9] \Z", before):  # 1 1/2 is neither 1 nor 1/2
        return True
    return after.isdigit() or _PART.search(before) is not None


def _number(literal: str) -> Number | None:
    """What `_NUMBER` matched; None where it has no value (1/0) or is too long."""
    if len(literal) > _LONGEST_NUMBER:
        return None
    plain = re.sub(_CURRENCY, "", literal.replace(",", "").replace(" ", ""))
    plain = plain.replace("\u2212", "-").replace("\u2013", "-")
    numerator, _, denominator = plain.partition("/")
    below = Fraction(denominator) if denominator else Fraction(1)
    return Number(Fraction(numerator) / below, plain) if below else None
