"""Sentences around one number, and numbers in words: "so she keeps six marbles", "five eighths".

A sentence states its last number where nothing before it is another value: no word that changes
one, and no number but the prompt's. Every pattern takes linear time.
"""

import re
from collections.abc import Iterator

from groupwise_verifiable.reading.measures import is_currency
from groupwise_verifiable.reading.question import Question
from groupwise_verifiable.reading.words import (
    ASKED,
    FILLING,
    LINKING,
    ORDINALS,
    changes,
    number_of,
    stem,
)

_MOST_UNKNOWN = 1  # words of a sentence that neither the prompt nor a list has
_CLAUSE = re.compile(r"[,;:.]\s+(?:and\s+)?(?:so|thus|hence|therefore)\b,?")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_NUMBER = re.compile(r"(?:-|\\?[$\u20ac\u00a3\u20b9]\s?){0,2}[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?")
_PROSE = re.compile(r"[A-Za-z',:\s-]*")
_ORDINAL = re.compile(
    r"(?<![\w./^])([0-9]{1,6})\s*\^?\s*\{?\s*(?:\\(?:text|math)[a-z]*\s*\{\s*)?"
    r"(?:st|nd|rd|th)(?![a-zA-Z])\s*\}{0,2}"
)
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_PARTS = re.compile(
    r"(?<![A-Za-z-])(?P<above>[a-z]+)[ -]"
    rf"(?P<below>(?:half|halves|(?:quarter|{'|'.join(set(ORDINALS) - {'first', 'second'})})s?))\b",
    re.IGNORECASE,
)
_TENS = re.compile(r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty", re.IGNORECASE)
# Words before a number by which it is not what the sentence says, and those right before it.
_DENYING = frozenset({
    "avoid", "avoids", "barely", "could", "denied", "denies", "deny", "doubt", "doubts", "fail",
    "failed", "fails", "forbidden", "hardly", "ignore", "ignores", "impossible", "instead", "lack",
    "lacks", "may", "might", "rather", "refuses", "scarcely", "unable", "unlike", "unlikely",
})  # fmt: skip
_RELATING = frozenset({
    "against", "among", "and", "around", "as", "by", "for", "into", "of", "on", "per", "since",
    "through", "till", "times", "with", "within",
})  # fmt: skip
_PLAIN_ENDS = (("total", "of"), ("left", "with"))
_SUBJECTS = frozenset(
    {"he", "she", "it", "they", "we", "you", "i", "there", "s", "so", "to", "must"}
)


def in_digits(text: str, question: Question) -> str:
    """Returns a text with five eighths as \\frac{5}{8}; 6th and sixth as 6, for a place."""
    text = _PARTS.sub(lambda match: _part(match, question), text)
    if not question.is_about("place"):
        return text
    text = _ORDINAL.sub(r"\1", text)
    words = [word for word in _WORD.findall(text) if word.lower() in ORDINALS]
    if len(words) != 1 or re.search("[0-9]", text):
        return text
    return text.replace(words[0], str(ORDINALS[words[0].lower()]))


def _part(match: re.Match[str], question: Question) -> str:
    below = match["below"].lower()
    size = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}.get(below)
    size = size or ORDINALS[below if below in ORDINALS else below.removesuffix("s")]
    above = number_of(match["above"])
    counted = stem(below) in question.stems  # three quarters, which are coins
    if not above or counted or (_TENS.fullmatch(match["above"]) and size < 10):  # the thirty-fifth
        return match[0]
    return rf"\frac{{{above}}}{{{size}}}"


def number_stated(text: str, question: Question) -> str | None:
    """Returns the number that a sentence states, with what stands behind it; None without one."""
    plain = _TEXT.sub(r"\1", text).replace("*", "").replace("\u2019", "'")
    clauses = _CLAUSE.split(plain)
    sentence = _with_digits(" ".join(clauses[-1].split()))
    every = list(_NUMBER.finditer(sentence))
    if not every:
        return None
    last = every[-1]
    prose = _NUMBER.sub(" ", sentence[: last.start()])
    words = _WORD.findall(prose)
    if (
        not (words or len(clauses) > 1)
        or not _PROSE.fullmatch(prose)
        or any(_other_values(words, question))
    ):
        return None
    others = [match.group() for match in every[:-1]]
    known = _NUMBER.findall(question.text)
    linked = LINKING & {word.lower() for word in _WORD.findall(_between(sentence, every))}
    if others and not (linked and set(others) <= set(known)):
        return None
    return sentence[last.start() :]


def _between(sentence: str, numbers: list[re.Match[str]]) -> str:
    """What stands between the last number and the one before it."""
    start = numbers[-2].end() if len(numbers) > 1 else 0
    return sentence[start : numbers[-1].start()]


def _other_values(words: list[str], question: Question) -> Iterator[bool]:
    """For each reason against the words before a number, whether it holds."""
    known = question.stems | {stem(word) for word in LINKING | FILLING} | _SUBJECTS
    yield any(map(is_currency, words))
    related = words[-1:] != [] and words[-1].lower() in _RELATING
    yield related and tuple(words[-2:]) not in _PLAIN_ENDS
    words = [word.lower().removesuffix("'s") for word in words]
    yield bool(_DENYING & set(words))
    others = [word for word in words if word != "with"]  # no ordinal, for all its ending
    yield any(changes(w, counted=w in ASKED and w in question.stems) for w in others)
    yield sum(not {stem(w), stem(w) + "e"} & known for w in words) > _MOST_UNKNOWN
    yield any(number_of(word) is not None for word in words)


def _with_digits(sentence: str) -> str:
    """The one number of a sentence in digits, where it is a word."""
    words = [word for word in re.findall(r"[A-Za-z]+(?:-[a-z]+)?", sentence) if number_of(word)]
    if len(words) != 1 or words[0].lower() == "one" or re.search("[0-9]", sentence):
        return sentence
    return sentence.replace(words[0], str(number_of(words[0])))
