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
_DENIAL = re.compile(r"\b(?:no|not|neither|wrong|wait|guess|only|instead|coefficient)\b", re.I)
_HUNDREDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_SIDES = re.compile(r"(?:[^={}]|\{(?:[^{}]|\{[^{}]*\})*\})+")
_UNREAD = re.compile(
    r"\\(?:i*int|cap|star|circ|oplus|otimes|odot|sum|prod|lim|det|begin|frac\s*\{d)|\]\s*[_^]|[vV]matrix"
)
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
    text = attempt.text.rpartition("</think>")[2]
    if same_answer(gold, answer, asked, strict=strict):
        return True
    if 1 < len(boxes) <= 10 and _count(gold, asked) == len(boxes) and not _DENIAL.search(text):
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
    if letter is not None:
        return choice(answer) == letter or _spelling(answer) == _spelling(gold)
    answer = content(answer)
    if _spelling(answer) == _spelling(gold):
        return True
    right, given = _both(gold, answer, asked)
    if given is None:
        given = _end_of_chain(answer, asked)
    if right is None or given is None:
        return False
    if _HUNDREDS.fullmatch(gold.strip()) and given.kind in ("list", "set"):  # 100,200
        right = read(gold.replace(",", ", "))
        assert right is not None
    return Comparison(asked, strict).same(right, given)


def _end_of_chain(answer: str, asked: Question) -> Node | None:
    """The last side of a chain that begins with what is not read here: an integral, a sum."""
    *before, last = _SIDES.findall(answer)
    end = read(last, asked.names)
    unread = [side for side in before if read(side, asked.names) is None]
    if end is None or not unread or not all(_UNREAD.search(side) for side in unread):
        return None
    if re.search(r"\\n(?:ot|eq?)(?![a-z])", answer):
        return None
    sides = [side for side in before if side not in unread]
    chain = read("=".join([*sides, last]), asked.names)
    return chain if sides else end


def _both(gold: str, answer: str, asked: Question) -> tuple[Node | None, Node | None]:
    """Both as nodes; letters that are unknowns in the prompt or in gold are none of units."""
    if r"\int" in asked.text or "integra" in asked.text.lower():
        answer = re.sub(r"\+\s*[ckK]\s*$", "+C", answer)
    right = read(gold, asked.names)
    names = asked.names | (right.unknowns if right is not None else frozenset())
    return right, read(answer, frozenset(name for name in names if len(name) == 1))


def _spelling(text: str) -> str:
    """The text without the white space that means nothing: not that of 1 1/2."""
    return re.sub(r"\s+(?![0-9])|(?<![0-9])\s+", "", tidy(text))


def _count(gold: str, asked: Question) -> int:
    node = read(gold, asked.names)
    return len(items(node)) if node is not None else 0
