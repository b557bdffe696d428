"""What sentences state: "so she keeps 6 marbles", "the vertex is at (3, -4)", "Cleo came last".

A sentence states what follows its last verb, or its one number that the prompt does not have, where
nothing beside it is another value: no word that changes or denies one. Every pattern takes linear
time.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from groupwise_verifiable.reading.measures import is_currency
from groupwise_verifiable.reading.notation import FORMULA
from groupwise_verifiable.reading.question import Question
from groupwise_verifiable.reading.words import (
    ASKED,
    FILLING,
    LINKING,
    changes,
    number_of,
    rises,
    stem,
)

_MOST_UNKNOWN = 1  # words of a sentence that neither the prompt nor a list has
_LONGEST = 400  # characters of a sentence
_CLAUSE = re.compile(
    r"[,;:.]\s+(?:and\s+)?(?:so|thus|hence|therefore|then)\b,?"
    r"|,\s+(?:and\s+)?(?=(?:he|she|they|we|it|there|you)\s)"
    r"|\b(?:we|you) (?:have|get|obtain|find|see|conclude)\b(?: that\b)?:?"
    r"|,\s+(?:giving|leaving|which (?:gives|leaves))\b"
)
_REASON = re.compile(r",?\s+\(?(?:because|since)\s[^0-9]*[0-9].*$", re.DOTALL)
_INTRODUCTION = re.compile(
    r"^(?:(?:for|with|after|in|from|at|of|to|out of|using|by|dividing|adding)\b[^,=(]{1,80}"
    r"|(?:since|because|as)\b[^,]{1,120}),\s+"
    r"(?=[a-z0-9])",
    re.IGNORECASE,
)
_WHERE = re.compile(
    r"(?<=[0-9}])\s*,?\s+(?:(?:attained|achieved|reached|which occurs) )?"
    r"(?:at|when|for) +[a-z] *=[^,]{1,40}$"
)
_SUPPOSED = re.compile(r"\b(?:if|unless|suppose|had|would|wish|assuming|claims?|says?)\b", re.I)
_PREDICATE = re.compile(
    r"^(?P<subject>.*)\b(?:is|are|was|were|be|has|have|equals?|measures|arrives?|ends?|shows?"
    r"|(?:converges|comes|amounts) to|approaches)\b\s*:?\s*"
    r"(?:(?:equal to|given by|located|approximately|about|exactly|simply|just|now|then)\s+){0,2}"
    r"(?P<rest>.+)$",
    re.DOTALL,
)
_NAMING_IT = re.compile(r"(.{1,60}?) is (the .{5,}?)[.\s]*$", re.DOTALL)  # 101 is the least prime
_AT = re.compile(
    r"^(?:for )?(?:all +[a-z] +(?:with|such that|where) +)?(?:at |on )?"
    r"(?:the (?:line|point|vector|interval|set|equation|number) )?",
    re.IGNORECASE,
)
_MARKED = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_NUMBER = re.compile(
    r"(?:-|\\?[$\u20ac\u00a3\u20b9]\s?){0,2}[0-9][0-9,]*(?::[0-9]{2})*(?:\.[0-9]+)?(?:/[0-9]+)?!?(?<!,)"
)
_PLAIN = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")  # a word that is no command
_PROSE = re.compile(r"[A-Za-z',:()\s-]*")
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_BETWEEN = re.compile(r"\s(?:of|with|for|in|from|to [a-z]{3,}|holding)\s+(?:(?:all|the)\s+)*$")
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
_SUBJECTS = frozenset({
    "he", "she", "it", "they", "we", "you", "i", "there", "s", "so", "to", "must", "will", "her",
    "his", "their", "both", "after", "from", "now", "get", "find", "dividing", "by", "therefore",
    "then", "came", "come",
})  # fmt: skip
_NAMING = frozenset({
    "remainder", "root", "multiple", "divisor", "reciprocal", "inverse", "least", "greatest",
    "larger", "smaller", "third", "fourth", "fifth", "sixth", "tenth", "pair", "pairs",
    "between", "hundredth", "thousandth",
})  # fmt: skip
"""Words that change a number, but name what is asked for where the prompt has them."""
_OPENING = frozenset({"after", "before", "during", "from", "between", "to", "under", "over"})
"""Prepositions that change a number, unless the prompt has what they begin."""
_VERBS = frozenset(map(stem, LINKING))
_STATING = LINKING | {"does", "do", "diverges", "converges", "exists"}
_QUANTITIES = LINKING | {"force", "speed", "rate", "distance", "height", "mass", "minimum"}
_ENDING = frozenset({"a", "an", "be", "by", "called", "named", "on", "the", "to"}) | LINKING


def readings(text: str, question: Question) -> Iterator[str]:
    """Yields what a sentence states: what follows its verb, its one number, its last formula."""
    if _PLAIN.search(text) is None or len(text) > _LONGEST:
        return
    sentence, is_clause = _last_clause(_without_formulas(text, question))
    if is_clause:
        yield sentence
    named = _NAMING_IT.match(sentence)
    if named and named[2].lower() in question.text.lower():
        yield named[1]
    match = _PREDICATE.match(sentence)
    if match is not None and _is_subject(match["subject"], question):
        yield _AT.sub("", _without_verb(_without_question(match["rest"], question), question))
    elif match is None and (rest := _AT.sub("", sentence)) != sentence:
        yield rest
    number = _number_stated(sentence, question, is_clause=is_clause)
    if number is not None:
        yield number


def _without_formulas(text: str, question: Question) -> str:
    """A sentence with "it" for the formulas of the prompt: six zeros at the end of 25!."""
    text = _MARKED.sub(r"\1", text)
    for match in FORMULA.finditer(question.text):
        formula = next(group for group in match.groups() if group is not None).strip()
        if len(formula) > 2 and re.search("[^0-9.,]", formula):
            text = re.sub(rf"(?<=[a-z] )\s*{re.escape(formula)}(?![0-9])", "it", text)
    return text


def _without_question(rest: str, question: Question) -> str:
    """What follows a verb without the words at its end that the prompt has: after the discount."""
    words = rest.split(" ")
    for place, word in enumerate(words[1:], start=1):
        tail = " ".join(words[place:])
        if word in _OPENING and len(words) - place > 1 and f" {tail}" in question.text:
            return " ".join(words[:place])
    return rest


def states(  # noqa: PLR0911 - a case for each kind
    words: str, text: str, question: Question
) -> bool:
    """Returns whether a sentence states words: Cleo by "Cleo came last", yes by "Yes, it is"."""
    if _PLAIN.search(text) is None or len(text) > _LONGEST:
        return False
    sentence, _ = _last_clause(text)
    plain, wanted = sentence.lower().strip(" ."), words.lower()
    if plain == wanted and len(wanted) > 2:
        return True
    if wanted in ("yes", "no", "true", "false"):
        return _affirms(wanted, text)
    counted = _WORD.findall(sentence)[-1:]
    if counted and not plain.endswith(wanted) and stem(counted[0]) in question.stems:
        plain = plain.removesuffix(counted[0].lower()).strip()  # an isosceles triangle
        sentence = sentence[: len(plain)]
    if plain == wanted and len(wanted) > 2:
        return True
    if plain.startswith(f"{wanted} "):
        others, first = sentence[len(wanted) :], ""
    elif plain.endswith(f" {wanted}"):
        others, first = sentence[: len(plain) - len(wanted)], wanted.split()[0]
    else:
        return False
    every = _WORD.findall(others)
    if not every or not _PROSE.fullmatch(_NUMBER.sub(" ", others)):
        return False
    kind = stem(every[-1]) in question.stems and {w.lower() for w in every[-2:-1]} <= {"in", "the"}
    ends = not first or first in _STATING or every[-1].lower() in _ENDING or kind
    others_named = every[1 : -1 if kind else None] if first else every
    is_alone = not any(word[0].isupper() for word in others_named)
    return ends and is_alone and wanted not in others.lower() and _is_subject(others, question)


def _affirms(wanted: str, text: str) -> bool:
    """Whether a sentence begins by yes, no, true or false, and does not take it back."""
    match = re.match(rf"{wanted}\s*[,;:.\u2014-]\s*(.+)$", _MARKED.sub(r"\1", text).lower())
    rest = set(_WORD.findall(match[1])) if match else set()
    denied = wanted in ("yes", "true") and any(map(changes, rest))
    return match is not None and not denied and not rest & {"yes", "but", "or", "however"}


def _last_clause(text: str) -> tuple[str, bool]:
    """The last clause of a sentence without a reason behind it, and whether there are others."""
    plain = _MARKED.sub(r"\1", text).replace("*", "").replace("\u2019", "'")
    head = _WHERE.sub("", _INTRODUCTION.sub("", _REASON.sub("", plain))) or plain
    *before, last = _CLAUSE.split(head)
    if any(_SUPPOSED.search(each) for each in before):
        before, last = [], plain
    return _with_digits(" ".join(last.split())), bool(before) or head != plain


def _without_verb(rest: str, question: Question) -> str:
    """What follows a verb without words of the prompt before the formula: "missing 90"."""
    words = re.match(r"(?:[a-z]{2,}\s+){1,3}(?=[-\\0-9A-Z(])", rest)
    spelled = words[0].split() if words else ["to"]
    changed = "by" in spelled and not question.is_about("change")
    if words is None or changed or "to" in spelled or any(_other_values([*spelled, ""], question)):
        return rest
    return rest[words.end() :]


def _number_stated(sentence: str, question: Question, *, is_clause: bool) -> str | None:
    """The number that a sentence states, with what stands behind it; None without one.

    It is the one that the prompt does not have, else the last one.
    """
    every = list(_NUMBER.finditer(sentence))
    known = _known_numbers(question.text)
    new = [match for match in every if match.group() not in known]
    if not every or len(new) > 1:
        return None
    number = new[0] if new else every[-1]
    before, behind = every[: every.index(number)], every[every.index(number) + 1 :]
    prose = _NUMBER.sub(" ", sentence[: number.start()])
    words = _WORD.findall(prose)
    if not (words or is_clause or behind) or not _PROSE.fullmatch(prose):
        return None
    if any(_other_values(words, question)):
        return None
    between = sentence[before[-1].end() : number.start()] if before else ""
    if before and not _VERBS & {stem(word) for word in _WORD.findall(between)}:
        return None
    return (
        sentence[number.start() :]
        if not behind
        else _first_part(sentence, number, behind[0], question)
    )


def _first_part(
    sentence: str, number: re.Match[str], other: re.Match[str], question: Question
) -> str | None:
    """A number with what it counts, of 8 boxes of 6 eggs; None where another number changes it."""
    rest = _NUMBER.sub(" ", sentence[number.end() :])
    counted = sentence[number.end() : other.start()]
    words = [word.lower() for word in _WORD.findall(rest) if word.lower() not in ("to", "all")]
    place = _BETWEEN.search(counted)
    if place is None or not _PROSE.fullmatch(rest) or any(map(changes, words)):
        return None
    stems = [stem(word) for word in _WORD.findall(counted)]
    if _VERBS & set(stems) or stems[0] not in question.stems:
        return None
    return number.group() + counted[: place.start()]


@lru_cache(maxsize=512)
def _known_numbers(prompt: str) -> frozenset[str]:
    """The numbers of a prompt, in digits and in words."""
    named = (number_of(word) for word in _WORD.findall(prompt))
    return frozenset((*_NUMBER.findall(prompt), *(str(n) for n in named if n is not None)))


def _is_subject(text: str, question: Question) -> bool:
    """Whether what stands before a verb names what is asked for, and denies nothing."""
    numbers = _NUMBER.findall(text)
    if not set(numbers) <= _known_numbers(question.text):
        return False
    words = [word for word in _WORD.findall(re.sub(r"\\[a-zA-Z]+", " ", text)) if len(word) > 1]
    return not any(_other_values([*words, ""], question))


def _other_values(words: list[str], question: Question) -> Iterator[bool]:
    """For each reason against the words before a number, whether it holds."""
    known = question.stems | {stem(word) for word in LINKING | FILLING} | _SUBJECTS
    yield any(map(is_currency, words))
    related = words[-1:] != [] and words[-1].lower() in _RELATING - (
        {"by"} if question.is_about("change") else set()
    )
    of_quantity = words[-1:] == ["of"] and words[-2:-1] and words[-2].lower() in _QUANTITIES
    yield related and not of_quantity and tuple(words[-2:]) not in _PLAIN_ENDS
    yield {rises(" ".join(words)), rises(question.text)} == {True, False}
    words = [word.lower().removesuffix("'s") for word in words]
    if words[:1] == ["each"] and stem(words[1] if len(words) > 1 else "") in question.stems:
        words = words[1:]
    yield bool(_DENYING & set(words))
    others = [word for word in words[:-1] if word not in ("all", "to")] + words[-1:]
    yield any(
        changes(w, counted=w in ASKED and w in question.stems)
        and not (w in _NAMING and stem(w) in question.stems)
        for w in others
    )
    yield sum(len(w) > 1 and not {stem(w), stem(w) + "e"} & known for w in words) > _MOST_UNKNOWN
    yield any(number_of(word) is not None for word in words)


def _with_digits(sentence: str) -> str:
    """The one number of a sentence in digits, where it is a word."""
    words = [word for word in re.findall(r"[A-Za-z]+(?:-[a-z]+)?", sentence) if number_of(word)]
    if len(words) != 1 or words[0].lower() == "one" or re.search("[0-9]", sentence):
        return sentence
    return sentence.replace(words[0], str(number_of(words[0])))
