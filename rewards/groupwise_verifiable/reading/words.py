"""Words in and after numbers: large numbers, number words, units, words that change a value."""

import re

from groupwise_verifiable.reading.measures import is_unit

LARGE = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
    "\u767e": 10**2,
    "\u5343": 10**3,
    "\u4e07": 10**4,
    "\u767e\u4e07": 10**6,
    "\u4ebf": 10**8,
}
"""Words that multiply the number before them."""

ASKED = frozenset({"apiece", "each", "lost", "missing"})
"""Words that change a number, unless the prompt asks for what they say: how many are missing."""

_COUNTED = ASKED | frozenset({
    "couple", "half", "halves", "pair", "pairs", "quarter", "quarters", "score", "scores", "tens",
    "third", "thirds", "times",
})  # fmt: skip
"""Words that change a number, unless the prompt counts them: how many pairs."""

_CHANGING = _COUNTED | frozenset({
    "above", "after", "ago", "all", "almost", "alternatively", "another", "anything", "before",
    "below", "beneath", "besides", "between", "beyond", "bn", "but", "cannot", "crore", "cube",
    "cubed", "debt", "decreased", "different", "divided", "divisor", "double", "either",
    "exceeding", "except", "excess", "excluding", "factorial", "false", "far", "few", "fewer",
    "fold", "from", "greater", "gross", "if", "incorrect", "increased", "inverse", "k", "lacking",
    "lakh", "larger", "least", "less", "loss", "many", "maybe", "minus", "mn",
    "mod", "modulo", "more", "most", "multiple", "near", "nearly", "negative", "neither", "never",
    "no", "none", "nor", "not", "opposite", "or", "over", "percentile", "perhaps", "plus",
    "possibly",
    "reciprocal", "remainder", "root", "short", "shy", "smaller", "squared", "than", "to", "too",
    "triple", "twice", "under", "unless", "until", "up", "upward", "upwards", "versus", "vs",
    "without", "wrong",
})  # fmt: skip
"""Words beside a number that make another value, or a condition, of it."""

LINKING = frozenset({
    "is", "are", "was", "were", "be", "equal", "equals", "makes", "make", "made", "gets", "get",
    "has", "have", "had", "earns", "pays", "paid", "needs", "costs", "cost", "gives", "leaves",
    "total", "exactly", "about", "approximately", "roughly", "only", "answer", "sum", "area",
    "value", "number", "result", "product", "perimeter", "volume", "length", "probability",
    "average", "mean", "profit", "point", "points", "interval",
    "set", "vector", "matrix",
})  # fmt: skip
"""Words that may stand right before a number without changing it: "Janet makes 18"."""

FILLING = frozenset({
    "a", "an", "the", "of", "per", "in", "for", "and", "on", "with", "at", "total", "altogether",
    "exactly", "approximately", "about", "roughly", "only", "way", "ways", "unit", "units",
    "square", "cubic", "day", "time", "result", "answer", "respectively", "possible", "people",
    "because", "since", "when", "where", "which", "as", "is", "are", "was", "were", "be", "been",
    "needed", "required", "used", "made", "left", "remain", "remaining", "there", "that", "this",
    "do", "does", "such", "distinct", "valid", "ordered", "integer", "integers", "numbers",
    "solution", "solutions", "value", "values", "element", "elements", "term", "terms",
})  # fmt: skip
"""Words that may stand behind a number without changing it."""

_CHANGING_SIGNS = frozenset(
    "\u534a\u500d\u4e0d\u4ee5\u81f3\u8d85\u8d1f\u6839\u5927\u5c0f\u5c11\u591a\u5bf9\u6253\u5012\u53cd\u5341\u975e\u65b9"
)
_CHANGING_END = re.compile(r"(?:\dth|[a-z]ths?|fold|wards?)$")
_UP = re.compile(
    r"\b(?:increas|ris(?:e|es|ing)\b|rose\b|gain|grow|grew|maxim|highest)", re.IGNORECASE
)
_DOWN = re.compile(
    r"\b(?:decreas|fall|fell|drop|shrink|shrank|los[et]|minim|lowest)", re.IGNORECASE
)
_ENDS = {
    "both",
    "with",
    "month",
    "months",
    "width",
    "widths",
    "length",
    "lengths",
    "depth",
    "depths",
    "earth",
    "growth",
    "path",
    "paths",
    "moth",
    "moths",
    "cloth",
    "truth",
    "tooth",
    "bath",
    "baths",
    "forward",
    "reward",
    "rewards",
    "award",
    "awards",
    "card",
    "cards",
}

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_PLACES = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth",
    "eighteenth", "nineteenth", "twentieth",
)  # fmt: skip
ORDINALS = {word: n for n, word in enumerate(_PLACES, start=1)}
_VALUES = {word: n for n, word in enumerate(_ONES)} | {w: 20 + 10 * n for n, w in enumerate(_TENS)}


def changes(word: str, *, counted: bool = False) -> bool:
    """Returns whether a word in lower case makes another value of a number, or a condition.

    counted: whether the prompt names it, so that it may be what the number counts: 3 pairs.
    """
    if not word.isascii():
        return not is_unit(word) and any(sign in _CHANGING_SIGNS for sign in word)
    if counted and word in _COUNTED:
        return False
    if word.endswith("n't"):
        return True
    return word in _CHANGING or (_CHANGING_END.search(word) is not None and word not in _ENDS)


def rises(text: str) -> bool | None:
    """Returns whether a text says that something rises, or that it falls; None for both or none."""
    up, down = (pattern.search(text) is not None for pattern in (_UP, _DOWN))
    return None if up == down else up


def stem(word: str) -> str:
    """Returns a word in lower case without the ending of its plural."""
    lower = word.lower()
    return re.sub(r"(?<=[a-z]{2})(?:ies|es|s|y)$", "", lower)


def number_of(words: str) -> int | None:
    """Returns the number that words name, as "seventy-two" does; None if they name none."""
    words = words.strip().lower()
    if words.startswith("negative "):
        value = number_of(words.removeprefix("negative "))
        return None if value is None else -value
    total = current = 0
    parts = [part for part in re.split(r"[\s-]+", words) if part != "and"]
    if not parts or len(parts) > 20:
        return None
    for part in parts:
        if part in _VALUES:
            current += _VALUES[part]
        elif part == "hundred" and current:
            current *= 100
        elif part in LARGE and part != "dozen" and current:
            total, current = total + current * LARGE[part], 0
        else:
            return None
    return total + current
