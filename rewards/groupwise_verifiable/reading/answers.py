"""Where the answer of a completion stands, and that of a gold column.

Completions may be adversarial: every pattern here takes linear time, and an answer without a box is
searched only at the end of the text.
"""

import re
from typing import NamedTuple

from groupwise_messages.completion import outside_thinking, tagged
from groupwise_verifiable.reading.notation import FORMULA, undelimited

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:(?P<brace>\{)|(?P<bare>[^\s{}$\\]{1,50}))")
_BETWEEN = re.compile(r"[\s$]*(?:,|;|[\u3001\u6216\u548c\u4e0e\u4e14]|,?\s*\b(?:and|or)\b)[\s$]*")
# Words by which an answer does not stand: in a box's sentence, right before it; after an answer;
# and anywhere in a text with boxes in several places, of which each may be a part of the answer.
_DENIED = re.compile(r"(?:\b(?:not|never|cannot be|wrong|incorrect)|n't)\b[^.\n]{0,25}\Z")
_DOUBTS = re.compile(
    r"(?:\b(?:not|never|unsure|unclear|doubt|whether|if|unless|wrong|incorrect)|n't)\b[^.,;:\n]{0,30}\Z",
    re.IGNORECASE,
)
_RETRACTED = re.compile(
    r"\b(?:[Ww]ait|[Aa]ctually|wrong|mistaken?|misread|incorrect)\b|\bNo, |\bnot right\b"
)
_DOUBTED = re.compile(r"\b(?:no|not|neither|wrong|wait|guess|only|instead|coefficient)\b", re.I)
_MOST_BOXES = 20
_ANCHOR = re.compile(
    r"(?:\bans(?=[.:])|\banswer\b\**(?:\s+to (?:this|the) (?:question|problem|equation))?"
    r"(?:\s+(?:is|would be|should be|=))?|(?<!\S)####|"
    r"\b(?:correct|right|best) (?:option|choice)(?:\s+is)?|"
    r"\u7b54\u6848(?:\u662f|\u4e3a|\u70ba|)|\bresult(?:\s+is|\**:))[\s*:_\uff1a\u2192]*",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?:\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer)|(?:\A|[.\n])\s*(?:So|Thus|Hence|Therefore),?)"
    r"\s*[(*]{0,3}([A-J])[)*]{0,3} is (?:the )?(?:correct|right)"
    r"(?: (?:answer|option|choice|one))?[.!*\s]*\Z"
)  # so option B is correct
_TAIL = 4_000  # characters at the end that are searched for an answer without a box
_LONGEST_LINE = 1_000
_DOTS = re.compile(r"(?<=[0-9])\.\.\.")
_REASONED = re.compile(
    r"([*(]*[A-J][*)]*)(?:\.|,?\s+(?:because|since|as)\b)[*\s]+(?:[A-Z]\S*|\S+)(?:\s+\S+){5}"
)  # B. This is why
_SENTENCE = re.compile(r"(?<!\b[A-J])\.(?=\s+[A-Z])|\u3002(?=.)|\.(?=\s*\**\s*\Z)")


class Box(NamedTuple):
    """start, end: where a box begins in a text, and ends."""

    start: int
    end: int
    content: str


def stated_answer(text: str) -> tuple[str, list[str]]:
    """Returns the answer of a completion; and its boxes, if all may be parts of an answer.

    The answer is the last box, with the boxes that a comma, "and" or "or" joins to it. Without a
    box it is the content of the last `<answer>`; without that, what follows the last "answer is",
    "####" or the like: formulas, or the rest of the sentence. Thinking does not count. It is empty
    where a text has no answer or takes it back.
    """
    text = outside_thinking(text)
    doubted = _DOUBTED.search(text) is not None
    boxes = _boxes(text)
    if not boxes:
        return tagged(text, "answer") or _stated(text[-_TAIL:]), []
    last = boxes[-1]
    if _RETRACTED.search(text, last.end, last.end + 200):
        return "", []
    if _DENIED.search(text[max(0, last.start - 60) : last.start]):
        return "", []
    return _joined(text, boxes), [] if doubted else [box.content for box in boxes]


def gold_answer(gold: str) -> str:
    """Returns a gold answer without the reasoning before it: of a box, or after "####"."""
    gold = gold.rpartition("####")[2]
    boxes = _boxes(gold)
    if boxes:
        return ", ".join(box.content for box in boxes)
    return _without_dollars(undelimited(gold))


def _without_dollars(text: str) -> str:
    """The text without the signs of its formulas; with them where one is of money."""
    dollars = re.compile(r"(?<!\\)\$")
    return dollars.sub(" ", text).strip() if len(dollars.findall(text)) % 2 == 0 else text


def _boxes(text: str) -> list[Box]:
    """The last boxes that are in no other one."""
    boxes: list[Box] = []
    for match in list(_BOX.finditer(text))[-_MOST_BOXES:]:
        if boxes and match.start() < boxes[-1].end:
            continue
        if match["bare"]:
            boxes.append(Box(match.start(), match.end(), match["bare"].rstrip(".,")))
        elif (end := _closing(text, match.end())) is not None:
            boxes.append(Box(match.start(), end + 1, text[match.end() : end].strip()))
    return [box for box in boxes if box.content]


def _closing(text: str, start: int) -> int | None:
    """The index of the brace that closes the one open before `start`; None without one."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return None


def _joined(text: str, boxes: list[Box]) -> str:
    """The last box, with those that a separator joins to it."""
    joined = boxes[-1].content
    for box, following in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        separator = _BETWEEN.fullmatch(text[box.end : following.start])
        if separator is None:
            break
        joined = box.content + _joining(separator) + joined
    return joined


def _joining(separator: re.Match[str]) -> str:
    """A separator between two answers as the grammar reads it."""
    if re.search("or|\u6216", separator.group()):
        return " or "
    return " and " if re.search("and|[\u548c\u4e0e\u4e14]", separator.group()) else ", "


def _stated(text: str) -> str:
    for anchor in reversed(list(_ANCHOR.finditer(text))):
        line = _sentence(text[anchor.end() : anchor.end() + _LONGEST_LINE])
        if line:
            is_doubted = _DOUBTS.search(text[max(0, anchor.start() - 60) : anchor.start()])
            return "" if is_doubted or _RETRACTED.search(text, anchor.end()) else line
    option = _OPTION.search(text)
    return option[1] if option and not _DOUBTS.search(text[: option.start()]) else ""


def _sentence(text: str) -> str:
    """The rest of a sentence, which may begin with a formula on lines of its own."""
    start = FORMULA.match(text)
    if start is not None:
        text = " ".join(start.group().split()) + text[start.end() :]
    text = _DOTS.sub(r"\\ldots ", text)
    line, *behind = _SENTENCE.split(text.partition("\n")[0])
    line = line.strip().rstrip("*_.\u3002 \t" if behind else "*_.!\u3002 \t")  # 5!. is a factorial
    if reasoned := _REASONED.match(line):
        line = reasoned[1]
    line = _without_dollars(line)
    return re.sub(r"\\[()\[\]](?!\s*[0-9.]+\s*pt)", " ", line).strip().rstrip(". ")
