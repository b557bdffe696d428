r"""Conditions behind an answer: 2\pi k for integers k, x + 2 where x \ne 2, a_n for n \ge 1."""

import re
from typing import NamedTuple

_SPACE = r"(?:\\[,;: ]|\\q?quad|[\s,;~($])*"
_WORDS = r"(?:\\(?:text|mathrm|mbox)\s*\{[^{}]{0,40}\}|\b(?:where|with|for|all|any|every|and|if)\b)"
_START = rf"(?:,|\\q?quad|\(|{_WORDS}){_SPACE}(?:{_WORDS}{_SPACE}){{0,3}}"
_INTEGERS = re.compile(
    rf"{_START}(?P<name>[a-zA-Z])(?:\\[,; ]|[\s$])*"
    r"(?:(?:\\in|\u2208)\s*(?:\\mathbb\s*\{?\s*[ZNR]\s*\}?|\\mathbf\s*\{?[ZN]\}?|[\u2124\u2115\u211d])"
    r"(?:\s*[_^]\s*\{?[+0*]\}?)?"
    r"|(?:\\text\s*\{)?\s*(?:is |being )?(?:an? |any )?(?:arbitrary )?(?:integer|constant)s?\s*\}?)"
    r"[\s$)}.]*$"
)
_EVERY = re.compile(
    r"(?:\\text\s*\{)?[\s,]*(?:for|with|where) (?:an?|any|all|every|each|some) "
    r"(?:(?:real|arbitrary|fixed) )?(?:integer|constant|number)s?\s*\}?(?:\\[,; ]|[\s$])*"
    r"(?P<name>[a-z])[\s$)}.]*$"
)
_LIMIT = re.compile(
    rf"{_START}(?P<name>[a-z])\s*(?P<sign>\\neq?(?![a-z])|\\geq?(?:slant)?(?![a-z])|[\u2260\u2265>])"
    r"[^=<>\\,]{1,20}[\s$)}]*$"
)
_BUILT = re.compile(
    r"^(?:\\left\s*)?\\?\{(?P<value>.{1,200}?)(?:\\mid|\||:)\s*(?P<name>[a-z])\s*(?:\\in|\u2208)\s*"
    r"(?:\\mathbb\s*\{?\s*Z\s*\}?|\u2124)\s*(?:\\right\s*)?\\?\}$",
    re.DOTALL,
)
_REGION = re.compile(r"[<>\u2264\u2265\u2260]|\\(?:in|le|ge|ne|leq|geq|neq|lt|gt|mathbb)(?![a-z])")


class Conditional(NamedTuple):
    """value: an answer without its condition; name: the letter of that, None without one.

    is_limit: whether it excludes or bounds numbers, as x \\ne 2 does, and names no integer.
    """

    value: str
    name: str | None = None
    is_limit: bool = False


def conditional(text: str) -> Conditional:
    r"""Returns an answer and the condition behind it; x > 1 and x \ne 2 are answers themselves."""
    stripped = text.strip()
    for pattern in (_INTEGERS, _EVERY, _LIMIT):
        match = pattern.search(stripped)
        if match is None or not match.start():
            continue
        head = stripped[: match.start()].rstrip(" ,;(\\$")
        has_letter = match["name"] in re.sub(r"\\[a-zA-Z]+", " ", head)
        if head and (has_letter or match["name"] == "C") and not _REGION.search(head):
            return Conditional(head, match["name"], pattern is _LIMIT)
    match = _BUILT.match(stripped)
    return Conditional(match["value"], match["name"]) if match else Conditional(text)


def renamed(text: str, old: str, new: str) -> str:
    """Returns a text with another letter for the number that it leaves free."""
    return re.sub(r"(\\[a-zA-Z]+)|" + re.escape(old), lambda match: match[1] or new, text)
