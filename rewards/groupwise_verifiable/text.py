"""The text of a completion, and the answer inside it. Every function takes linear time.

Completions come from the model being trained, so they are looked at as an adversary's: no pattern
here can be made to backtrack over the whole text more than once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

# An ASCII number: thousands in threes or plain digits, decimals, a short exponent, a denominator.
# A sign counts only where no word, digit or bracket stands before it: "5-3" ends in 3, not in -3.
# Exponents stop at three digits, so that no text can ask for a number that fills the memory.
_NUMBER = re.compile(
    r"(?:(?<![\w)\].])[-+\u2212])?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
    r"(?: ?/ ?[0-9]+)?"
)
# Python refuses to convert longer digit strings by default, since that takes quadratic time.
_LONGEST_NUMBER = 4000


def content(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a completion: the string itself, or its last message's content."""
    if isinstance(completion, str):
        return completion
    if not completion:
        return ""
    text = completion[-1].get("content")
    if text is None:  # a message that only calls tools has no content
        return ""
    if not isinstance(text, str):
        raise ValueError(
            f"a message's content must be text, got {type(text).__name__}"
        )  # users' mistakes are ValueErrors throughout
    return text


def tagged(text: str, tag: str) -> str | None:
    """Returns the stripped content of the last `<tag>...</tag>`, None when there is none.

    Pairs are read from the left, as reasoning-gym's `extract_answer` reads them: an opening tag
    takes everything up to the next closing tag, other opening tags included.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    found, position = None, 0
    while True:
        start = text.find(opening, position)
        if start < 0:
            return found
        start += len(opening)
        end = text.find(closing, start)
        if end < 0:
            return found
        found = text[start:end].strip()
        position = end + len(closing)


def last_line(text: str) -> str:
    """Returns the last line that is not blank, stripped; an empty string when there is none."""
    lines = text.rstrip().splitlines()
    return lines[-1].strip() if lines else ""


def folded(text: str) -> str:
    """Returns the text stripped, with every run of white space as one space."""
    return " ".join(text.split())


def last_number(text: str) -> Fraction | None:
    """Returns the last number of the text, None when it has none or that one has no value (1/0)."""
    last = None
    for match in _numbers(text):
        last = match
    return None if last is None else _value(last.group())


def whole_number(text: str) -> Fraction | None:
    """Returns the number that the whole text is, None when it is anything else.

    White space around it, a dollar sign before it and a full stop after it are allowed.
    """
    stripped = text.strip().removeprefix("$").removesuffix(".")
    return _value(stripped) if _NUMBER.fullmatch(stripped) else None


def _numbers(text: str) -> Iterator[re.Match[str]]:
    return _NUMBER.finditer(text)


def _value(literal: str) -> Fraction | None:
    """The exact value of something that `_NUMBER` matched."""
    if len(literal) > _LONGEST_NUMBER:
        return None
    plain = literal.replace(",", "").replace("\u2212", "-").replace(" ", "")
    numerator, _, denominator = plain.partition("/")
    below = Fraction(denominator) if denominator else Fraction(1)
    return Fraction(numerator) / below if below else None
