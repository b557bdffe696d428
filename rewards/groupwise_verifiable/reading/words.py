"""Words in and after numbers: large numbers, number words, units, words that change a value."""

import re

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

CHANGING = frozenset({
    "above", "after", "almost", "another", "before", "below", "between", "couple", "cubed",
    "double", "either", "except", "fewer", "greater", "gross", "half", "halves", "if", "k",
    "larger", "least", "less", "many", "minus", "mod", "modulo", "more", "most", "nearly",
    "neither", "nor", "not", "or", "over", "pair", "pairs", "plus", "quarter", "quarters",
    "remainder", "score", "scores", "smaller", "squared", "than", "third", "thirds", "times",
    "to", "triple", "twice", "under", "unless", "until", "up", "versus", "vs", "without", "wrong",
})  # fmt: skip
"""Words after or before a number that make another value, or a condition, of it."""

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_VALUES = {word: n for n, word in enumerate(_ONES)} | {w: 20 + 10 * n for n, w in enumerate(_TENS)}

# Units by what they measure: two of one line differ in size.
_FAMILIES = (
    ("mm millimeter millimetre", "cm centimeter centimetre", "dm", "m meter metre",
     "km kilometer kilometre kmh kph", "in inch inches", "ft foot feet", "yd yard",
     "mi mile mph"),
    ("mg milligram", "g gram", "kg kilogram", "lb lbs pound", "oz ounce", "ton tonne"),
    ("ms", "s sec second", "min minute", "h hr hour", "day", "week", "month", "year"),
    ("ml mL milliliter millilitre", "l L liter litre", "gal gallon", "quart", "pint", "cup"),
    ("$ dollar usd", "cent c ¢"),
    ("rad radian", "degree"),
    ("am", "pm"),
    ("K kelvin", "C celsius", "F fahrenheit"),
    ("N", "kN"), ("J", "kJ"), ("W", "kW"), ("Pa", "kPa"), ("V",), ("A",), ("Hz",),
)  # fmt: skip
_UNITS = {
    word: (family, unit)
    for family, units in enumerate(_FAMILIES)
    for unit, spellings in enumerate(units)
    for word in spellings.split()
}
_WORD = re.compile(r"[A-Za-z$¢]+")


def changes(word: str) -> bool:
    """Returns whether a word in lower case makes another value of a number, or a condition."""
    return word in CHANGING or any(
        sign in word for sign in "\u534a\u500d\u4e0d\u4ee5\u5206\u81f3\u8d85"
    )


def is_unit(word: str) -> bool:
    """Returns whether a word, or a single letter, is the sign or the name of a unit."""
    return word in _UNITS or _singular(word) in _UNITS


def units_in(text: str) -> dict[int, frozenset[int]]:
    """Returns the units that a text names, by what they measure."""
    units: dict[int, set[int]] = {}
    for word in _WORD.findall(re.sub(r"([ap])\.?\s?m\b\.?", r"\1m", text, flags=re.IGNORECASE)):
        known = _UNITS.get(word) or _UNITS.get(_singular(word))
        if known is not None:
            units.setdefault(known[0], set()).add(known[1])
    return {family: frozenset(members) for family, members in units.items()}


def _singular(word: str) -> str:
    lower = word.lower()
    return lower.removesuffix("s") if len(lower) > 2 else lower


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
