"""Whether an answer is the gold one, both as they are written."""

import re
from collections.abc import Iterator, Mapping

from groupwise_verifiable.reading.choice import choice, content, options, plain_words
from groupwise_verifiable.reading.comparison import Comparison
from groupwise_verifiable.reading.conditions import conditional, renamed
from groupwise_verifiable.reading.cycles import cycles
from groupwise_verifiable.reading.grammar import read
from groupwise_verifiable.reading.items import items
from groupwise_verifiable.reading.marks import peeled
from groupwise_verifiable.reading.moments import moment
from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.notation import tidy
from groupwise_verifiable.reading.numerals import in_digits, mixed
from groupwise_verifiable.reading.piecewise import cases, same_cases
from groupwise_verifiable.reading.question import Question
from groupwise_verifiable.reading.relations import read_chain
from groupwise_verifiable.reading.sentences import readings, states
from groupwise_verifiable.reading.value import rational

_PROSE = re.compile(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}|[?!]\s*$")
_COMMANDS = re.compile(r"\\[a-zA-Z]+(?:\s*\{[^{}]*\})?|\b(?:and|or)\b")
_HUNDREDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_CONGRUENCE = re.compile(
    r"\s*(?:([^=\u2261]{1,60}?)\s*(?:\\equiv|\u2261)\s*)?(?:[^=\u2261]{1,60}(?:\\equiv|\u2261)\s*){0,3}"
    r"(-?[0-9]{1,30})\s*(?:\(|\\p|\\b)?mod\s*\{?([0-9]+)[})]?\s*$"
)
_MODULUS = re.compile(r"mod\s*[\s{(]?[0-9]")
_CONSTANT = re.compile(r"\+\s*(?:[ckK]|(?:\\text\s*\{)?\s*const(?:ant|\.)?\s*\}?)\s*$")
_WORDS = re.compile(r"[A-Za-z]{2,}(?:[ -][A-Za-z]+){0,3}(?: [0-9]{1,2})?")
_MOST_BOXES = 10


def is_mathematics(gold: str) -> bool:
    """Returns whether a gold answer can be compared: mathematics, a choice, one word, no prose."""
    tidied = tidy(gold)
    if not tidied or gold.strip().lower() in ("none", "nan") or not re.search(r"\w|\\", tidied):
        return False
    node = read(gold)
    if node is not None and node.kind != "text":
        return not (_PROSE.search(_COMMANDS.sub(" ", gold)) and node.kind == "label")
    return not _PROSE.search(_COMMANDS.sub(" ", gold))


def same_answer(gold: str, answer: str, question: Question, *, strict: bool = True) -> bool:
    """Returns whether an answer is the gold one; strict: in form, too, not in value alone."""
    gold_cases, answer_cases = cases(gold), cases(answer)
    if gold_cases is not None and answer_cases is not None:
        return same_cases(
            gold_cases,
            answer_cases,
            lambda one, other: same_answer(one, other, question, strict=strict),
        )
    if question.base() == 16 and re.fullmatch("[0-9A-F]*[A-F][0-9A-F]*", gold):
        gold = f"{gold}_{{16}}"
    gold, answer = (_listed(text, question) for text in (gold, answer))
    gold, answer = in_digits(gold, question), in_digits(answer, question)
    if not _MODULUS.search(gold):
        answer = _residue(answer, question)
    if _same_as_written(gold, answer, question, strict=strict):
        return True
    if choice(gold) is not None:
        return False
    words = plain_words(gold)
    if _WORDS.fullmatch(words) and states(words, answer, question):
        return True
    if (first := _permutation_or_moment(gold, question)) is not None:
        return any(
            first == _permutation_or_moment(reading, question)
            for reading in (answer, *readings(answer, question))
        )
    return any(
        _same_as_written(*pair, question, strict=strict)
        for pair in _other_readings(gold, answer, question)
    )


def _permutation_or_moment(text: str, question: Question) -> object:
    """The permutation where the prompt is about one, the date or the time of day; else None."""
    if question.is_about("permutation") and (images := cycles(text)) is not None:
        return tuple(sorted(images.items()))
    return moment(plain_words(text))


def _other_readings(gold: str, answer: str, question: Question) -> Iterator[tuple[str, str]]:
    """Gold and what an answer states beside what is written, as pairs that are one or not."""
    for reading in (*readings(answer, question), mixed(answer)):
        if reading != answer:
            yield gold, reading
    if (constants := _constants(gold, answer, question)) is not None:
        yield gold, renamed(answer, *constants)
    one, other = conditional(gold), conditional(answer)
    if (one.name is None and other.name is None) or (one.is_limit and other.is_limit):
        return
    free = read(one.value, question.names)
    unknowns = [name for name in (free.unknowns if free else ()) if name not in question.names]
    name = one.name or (unknowns[0] if len(unknowns) == 1 and len(unknowns[0]) == 1 else None)
    if name and other.name and name != other.name and not other.is_limit:
        yield one.value, renamed(other.value, other.name, name)
    else:
        yield one.value, other.value


def _constants(gold: str, answer: str, question: Question) -> tuple[str, str] | None:
    """The one letter of an answer that neither the prompt nor gold has, and that of gold: k and c,
    of f(x) = kx and f(x) = cx. What is said to be equal to something, as x of x = 5, is none."""
    right, given = read(gold, question.names), read(answer, question.names)
    if question.is_silent or right is None or given is None:
        return None
    own = right.unknowns - given.unknowns - question.names
    others = given.unknowns - right.unknowns - question.names
    if len(own) != 1 or len(others) != 1 or len("".join((*own, *others))) != 2:
        return None
    (new,), (former,) = others, own
    sides = ((former, gold), (new, answer))
    if any(re.match(rf"[\s$]*{letter}[\s$]*=", text) for letter, text in sides):
        return None
    return new, former


def _same_as_written(gold: str, answer: str, question: Question, *, strict: bool) -> bool:
    if _WORDS.fullmatch(gold) and plain_words(answer) == gold:  # II, which is no product
        return True
    verdict = _same_option(gold, answer, question)
    if verdict is not None:
        return verdict
    answer = content(answer)
    if _spelling(answer) == _spelling(gold):
        return True
    gold_node, answer_node = _nodes(gold, answer, question)
    if answer_node is None:
        answer_node = read_chain(answer, question)
    if gold_node is None or answer_node is None:
        return False
    if gold_node.kind == "based" and plain_words(answer) == gold_node.text.partition("_")[0]:
        return True  # FF, which is no product here
    if _HUNDREDS.fullmatch(gold.strip()) and answer_node.kind in ("list", "set"):  # 100,200
        gold_node = read(gold.replace(",", ", "))
        assert gold_node is not None
    return Comparison(question, strict).same(gold_node, answer_node)


def _same_option(gold: str, answer: str, question: Question) -> bool | None:
    """Whether the letters of two options are one; None where gold is no option."""
    letter, stated = choice(gold), choice(answer)
    contents = (content(gold), content(answer))
    if letter is not None and stated is not None:
        listed = {
            **options(question.text),
            **({letter: contents[0]} if contents[0] != gold else {}),
        }
        return letter == stated and not _is_another(letter, contents[1], listed, question)
    if letter is not None:
        return _spelling(answer) == _spelling(gold)
    if stated is not None and contents[1] != answer:
        listed = options(question.text)
        if stated in listed and not _are_one(gold, listed[stated], question):
            return False
    return None


def _listed(text: str, question: Question) -> str:
    """Letters of options side by side as a list: AC as A, C; any other text as it is."""
    letters = plain_words(text)
    if re.fullmatch("[A-J]{2,10}", letters) and set(letters) <= set(options(question.text)):
        return ", ".join(letters)
    return text


def _residue(text: str, question: Question) -> str:
    """The right side of a congruence about what the prompt names; any other text as it is."""
    match = _CONGRUENCE.match(text) if question.is_about("remainder") else None
    if match is None or not re.search(
        rf"(?:mod|by)[^0-9]{{0,12}}{match[3]}(?![0-9])", question.text
    ):
        return text
    left = "".join((match[1] or "").split())
    stands = left in "".join(question.text.split()) and (not left or re.search("[0-9]", left))
    return match[2] if stands else text


def _is_another(letter: str, stated: str, listed: Mapping[str, str], question: Question) -> bool:
    """Whether what stands behind an option's letter is another option's content, or another value.

    stated: without content it is the option itself, and no other one.
    """
    if (
        letter not in listed
        or choice(stated) == letter
        or _are_one(listed[letter], stated, question)
    ):
        return False
    others = (text for other, text in listed.items() if other != letter)
    both = [read(text, question.names) for text in (listed[letter], stated)]
    values = [rational(peeled(node).node) if node is not None else None for node in both]
    return None not in values or any(_are_one(text, stated, question) for text in others)


def _are_one(gold: str, answer: str, question: Question) -> bool:
    if _spelling(gold) == _spelling(answer):
        return True
    return choice(gold) is None and same_answer(gold, answer, question, strict=False)


def same_boxes(gold: str, boxes: list[str], question: Question, *, strict: bool = True) -> bool:
    """Returns whether boxes in several places hold the items of gold, one each."""
    if not 1 < len(boxes) <= _MOST_BOXES:
        return False
    node = read(gold, question.names)
    if node is None or len(node.args if node.kind == "tuple" else items(node)) != len(boxes):
        return False
    return same_answer(gold, ", ".join(boxes), question, strict=strict)


def _nodes(gold: str, answer: str, question: Question) -> tuple[Node | None, Node | None]:
    """Both as nodes; letters that are unknowns in the prompt or in gold are none of units."""
    if r"\int" in question.text or "integra" in question.text.lower():
        answer = _CONSTANT.sub("+C", answer)
    node = read(gold, question.names)
    names = question.names
    if node is not None:
        units = {word for part in node.walk() if part.kind == "unit" for word in part.text.split()}
        names = (names - units) | node.unknowns
    return node, read(answer, frozenset(name for name in names if len(name) == 1))


def _spelling(text: str) -> str:
    """The text without the white space that means nothing: not that of 1 1/2."""
    return re.sub(r"\s+(?![0-9])|(?<![0-9])\s+", "", tidy(text))
