"""Words of Coq: a text in sentences, and what a proof may say.

The list is of what is allowed: lemmas, definitions and tactics. It is one of two layers, and does
not rely on the other, the kernel (`groupwise_proofs.coq`).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from groupwise_proofs.theorem import FormatError, Theorem, named, text_of

STATING = ("Theorem", "Lemma", "Fact", "Remark", "Corollary", "Proposition", "Example")
ALLOWED = {*STATING, "Definition", "Fixpoint", "CoFixpoint", "Proof", "Qed", "Defined"}
"""First words of sentences in a completion, beside tactics, which have small letters."""
REPEATED = {"From", "Require", "Import", "Export", "Open", "Local", "Set", "Unset"}
"""First words of a header's sentences whose effect ends with its file."""
_PIECE = re.compile(r'\(\*|\*\)|"(?:[^"]|"")*"|(?P<end>\.(?=\s|$|\(\*))|[^("*.]+|.', re.DOTALL)
_BEFORE = re.compile(r"(?:[\s{}*+-]|(?:\d+|all|par|!|\[[\w ]*\])\s*:(?!=))*")
"""Bullets, braces and choices of goals, after which a command may stand."""
_WORD = re.compile(r"#|[^\W\d][\w']*")
_OPEN = re.compile(r"\b(?:admit|give_up|\w*_no_check)\b")
_STATEMENT = re.compile(rf"(?:{'|'.join(STATING)})\s+([^\W\d][\w']*)")
_NAMES = re.compile(
    rf"(?:^(?:{'|'.join(STATING)}|Definition|(?:Co)?Fixpoint)|\bwith(?=\s[^:]*:=))"
    r"\s+([^\W\d][\w']*)"
)


class WordError(ValueError):
    """A text has a word that no proof needs; a phrase that begins with it."""


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, without comments, each on one line.

    Raises WordError for a comment or a string that does not end.
    """
    depth, parts = 0, list[str]()
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece == "(*":
            depth += 1
        elif depth and piece == "*)":
            depth -= 1
            parts.append(" ")
        elif piece.startswith('"') and (depth or len(piece) == 1):
            raise WordError("a quotation mark in a comment, or without another")
        elif not depth:
            parts.append(piece)
            if match["end"]:
                yield _joined(parts)
                parts = []
    if depth:
        raise WordError("a comment without an end")
    if last := _joined(parts):
        yield last


def theorem_of(row: Mapping[str, Any]) -> Theorem:
    """A row's theorem: the last sentence of `formal_statement` that states one; what is before it
    belongs to the header, and a proof after it is left out. Raises FormatError."""
    header, text = text_of(row)
    try:
        found = [*sentences(text)]
    except WordError as error:
        raise FormatError(f"the column 'formal_statement' has {error}") from error
    places = [place for place, each in enumerate(found) if _STATEMENT.match(each)]
    if not places:
        raise FormatError(f"the column 'formal_statement' states no theorem: {text!r:.60}")
    before, statement = found[: places[-1]], found[places[-1]]
    if not statement.endswith("."):
        raise FormatError(f"the statement does not end with a period: {statement!r:.60}")
    return Theorem("\n".join([header, *before]), statement, named(_STATEMENT, statement))


def refusal(theorem: Theorem, text: str) -> str | None:
    """What no proof of a theorem needs to say, or None.

    What repeats a sentence of the header is not looked at.
    """
    try:
        header, said = {*sentences(theorem.header)}, [*sentences(text)]
    except WordError as error:
        return str(error)
    known, is_stated = {*_words(theorem.statement)}, False
    for each in said:
        if each in header:
            continue
        sentence = each[_BEFORE.match(each).end() :]  # type: ignore[union-attr]
        word = first_word(sentence)
        if (word[:1].isupper() and word not in ALLOWED) or word == "#":
            return f"the word {word}"
        if match := _OPEN.search(sentence):
            return f"the word {match[0]}"
        if each == theorem.statement and not is_stated:
            is_stated = True
            continue
        if theorem.name in _words(sentence):  # the admitted one, or another
            return f"the word {theorem.name}"
        if taken := known.intersection(_NAMES.findall(sentence)):
            return f"another meaning of {min(taken)}"
    return None


def states(theorem: Theorem, text: str) -> bool:
    """Whether a text has the theorem's own sentence."""
    try:
        return theorem.statement in sentences(text)
    except WordError:
        return True


def first_word(sentence: str) -> str:
    """The word that a sentence begins with; "" for another sign."""
    match = _WORD.match(sentence)
    return match[0] if match else ""


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _joined(parts: list[str]) -> str:
    return " ".join("".join(parts).split())
