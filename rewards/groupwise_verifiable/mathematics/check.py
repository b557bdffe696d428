"""Checks whether a completion's mathematical answer is the gold one.

Answers are read and compared in linear time, and every number is bounded, so they need no worker
processes, whatever the policy writes.
"""

import re

from groupwise_verifiable.mathematics.attempt import Attempt
from groupwise_verifiable.reading.answers import gold_answer, stated_answer
from groupwise_verifiable.reading.choice import choice, content
from groupwise_verifiable.reading.comparison import Comparison
from groupwise_verifiable.reading.grammar import read
from groupwise_verifiable.reading.items import items
from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.notation import tidy
from groupwise_verifiable.reading.question import Question, question

_LONGEST = 1_000  # most characters of an answer, or twice those of the gold answer
_PROSE = re.compile(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}|[?!]\s*$")
_COMMANDS = re.compile(r"\\[a-zA-Z]+(?:\s*\{[^{}]*\})?|\b(?:and|or)\b")


def equivalent(attempt: Attempt) -> float | None:
    """Returns 1.0 if the text's answer equals gold, else 0.0; None if gold is no mathematics."""
    gold = gold_answer(attempt.gold)
    if not is_mathematics(gold):
        return None
    answer, boxes = stated_answer(attempt.text)
    if not answer or len(answer) > max(_LONGEST, 2 * len(gold)):
        return 0.0
    try:
        return float(_is_right(gold, answer, boxes, attempt))
    except RecursionError:  # brackets in brackets
        return 0.0


def _is_right(gold: str, answer: str, boxes: list[str], attempt: Attempt) -> bool:
    asked = question(attempt.prompt)
    strict = attempt.rules == "strict"
    if same_answer(gold, answer, asked, strict=strict):
        return True
    if 1 < len(boxes) <= 10 and _count(gold, asked) == len(boxes):
        return same_answer(gold, ", ".join(boxes), asked, strict=strict)
    return False


def is_mathematics(gold: str) -> bool:
    """Returns whether a gold answer can be compared: mathematics, a choice, one word, no prose."""
    tidied = tidy(gold)
    if not tidied or gold.strip().lower() in ("none", "nan") or not re.search(r"\w|\\", tidied):
        return False
    node = read(gold)
    if node is not None and node.kind != "text":
        return not (_PROSE.search(_COMMANDS.sub(" ", gold)) and node.kind == "label")
    return not _PROSE.search(_COMMANDS.sub(" ", gold))


def same_answer(gold: str, answer: str, asked: Question, *, strict: bool = True) -> bool:
    """Returns whether an answer as it is written is the gold one."""
    letter = choice(gold)
    if letter is not None and choice(answer) is not None:
        return choice(answer) == letter
    if letter is None:
        answer = content(answer)
    if _spelling(answer) == _spelling(gold):
        return True
    right, given = _both(gold, answer, asked)
    if given is None and "=" in answer:  # of "\\int_0^1 2x dx = 1" the end is read
        given = read(answer.rpartition("=")[2], asked.names)
    if right is None or given is None:
        return False
    return Comparison(asked, strict).same(right, given)


def _both(gold: str, answer: str, asked: Question) -> tuple[Node | None, Node | None]:
    """Both as nodes; letters that are unknowns in the prompt or in gold are none of units."""
    right = read(gold, asked.names)
    names = asked.names | (right.unknowns if right is not None else frozenset())
    return right, read(answer, frozenset(name for name in names if len(name) == 1))


def _spelling(text: str) -> str:
    """The text without the white space that means nothing: not that of 1 1/2."""
    return re.sub(r"\s+(?![0-9])|(?<![0-9])\s+", "", tidy(text)).lower()


def _count(gold: str, asked: Question) -> int:
    node = read(gold, asked.names)
    return len(items(node)) if node is not None else 0
