"""Numbers in words and with words around them as one number: five eighths, at least 6, 6th.

Every pattern takes linear time.
"""

import re
from fractions import Fraction
from functools import lru_cache
from itertools import product

from groupwise_verifiable.reading.measures import units_in
from groupwise_verifiable.reading.question import Question
from groupwise_verifiable.reading.words import ORDINALS, number_of, stem

_ORDINAL = re.compile(
    r"(?<![\w./^])([0-9]{1,6})\s*\^?\s*\{?\s*(?:\\(?:text|math)[a-z]*\s*\{\s*)?"
    r"(?:st|nd|rd|th)(?![a-zA-Z])((?:\s+[a-z]+)?)(?:\s*\}){0,2}"
)
_WORD = re.compile(r"[A-Za-z]+")
_DIGITS = re.compile(r"[0-9]+")
_BELOW = rf"(?:half|halves|(?:quarter|{'|'.join(set(ORDINALS) - {'first', 'second'})})s?)"
_PARTS = re.compile(
    rf"(?<![A-Za-z-])(?:(?P<number>[0-9]+|[a-z]+) and )?(?P<above>[a-z]+)[ -](?P<below>{_BELOW})\b",
    re.IGNORECASE,
)
_TENS = re.compile(r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty", re.IGNORECASE)
_PLAIN = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")  # a word that is no command
_MIXED = re.compile(r"^([0-9]+) and ([0-9]+)/([0-9]+)(?![0-9/])")
_LEAST = re.compile(r"\b(?:at least|a minimum of|no (?:fewer|less) than) (?=[0-9])", re.IGNORECASE)
_MOST = re.compile(r"\b(?:at most|a maximum of|no more than|up to) (?=[0-9])", re.IGNORECASE)
_CHANCES = re.compile(r"(?<![\w.,/])([0-9]{1,9}) (?:in|out of) ([0-9]{1,9})(?![0-9.,/])")
_MINUS = re.compile(r"^(?:minus|negative) (?=[0-9])", re.IGNORECASE)
_FREEZING = re.compile(r"(?<![\w.-])([0-9.]+[^.,;0-9]{0,30}?) below zero\b")
_TERM = re.compile(r"^a_\{?([0-9]{1,9})\}?$")
# Two units of one quantity, the larger one first: 2 hours 15 minutes, 13 dollars and 50 cents.
_COMPOUND = re.compile(
    r"(?<![\w.,/])([0-9]{1,9})\s*([a-z]{1,12})\s*,?\s*(?:and\s*)?([0-9]{1,9})\s*([a-z]{1,12})\.?$"
)
_TWO = re.compile(r"[0-9][^0-9]*[a-z][^0-9]*[0-9]")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}|\\[,;: ]")


@lru_cache(maxsize=4096)
def in_digits(text: str, question: Question) -> str:
    """Returns a text with five eighths as \\frac{5}{8}; 6th and sixth as 6, for a place."""
    if _PLAIN.search(text) is None and not question.is_about("place"):
        return text
    text = _MINUS.sub("-", _PARTS.sub(lambda match: _part(match, question), text))
    if "below" in text:
        text = _FREEZING.sub(r"-\1", text)
    for name, words in (("least", _LEAST), ("most", _MOST)):
        if question.is_about(name):
            text = words.sub("", text)
    if question.is_about("chance"):
        text = _CHANCES.sub(r"\\frac{\1}{\2}", text)
    if question.is_about("place"):
        text = _place(text, question)
    return _one_unit(text)


def mixed(text: str) -> str:
    """Returns a text that begins by "3 and 5/6" with the mixed number of this value."""
    match = _MIXED.match(text)
    if match is None or int(match[2]) >= int(match[3]):
        return text
    return rf"{match[1]}\frac{{{match[2]}}}{{{match[3]}}}{text[match.end() :]}"


def _part(match: re.Match[str], question: Question) -> str:
    below = match["below"].lower()
    size = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}.get(below)
    size = size or ORDINALS[below if below in ORDINALS else below.removesuffix("s")]
    number = match["number"]
    above = 1 if number and match["above"].lower() == "a" else number_of(match["above"])
    counted = stem(below) in question.stems  # three quarters, which are coins
    if not above or counted or (_TENS.fullmatch(match["above"]) and size < 10):  # the thirty-fifth
        return match[0]
    if number is None:
        return rf"\frac{{{above}}}{{{size}}}"
    times = int(number) if number.isdigit() else number_of(number)
    if times is None:
        return match[0]
    return rf"\frac{{{times * size + above}}}{{{size}}}"


def _place(text: str, question: Question) -> str:
    text = _TERM.sub(r"\1", _ORDINAL.sub(r"\1\2", text))
    words = [word for word in _WORD.findall(text) if word.lower() in ORDINALS]
    if len(words) != 1 or not set(_DIGITS.findall(text)) <= set(_DIGITS.findall(question.text)):
        return text
    return text.replace(words[0], str(ORDINALS[words[0].lower()]))


def _one_unit(text: str) -> str:
    """A quantity in two units in the first of them: 2 hours 15 minutes as 9/4 hours."""
    if _TWO.search(text) is None:
        return text
    match = _COMPOUND.search(" ".join(_TEXT.sub(r"\1 ", text).split()))
    if match is None or re.search("[0-9]", match.string[: match.start()]):
        return text
    pairs = product(
        *(each[0] if len(each) == 1 else () for each in map(units_in, match.group(2, 4)))
    )
    share = next(
        (two.size / one.size for one, two in pairs if one.dimension == two.dimension), None
    )
    share = share and share.limit_denominator(10_000)
    if not share or share >= 1 or int(match[3]) * share >= 1:
        return text
    above, below = (int(match[1]) + Fraction(match[3]) * share).as_integer_ratio()
    return rf"{match.string[: match.start()]}\frac{{{above}}}{{{below}}} {match[2]}"
