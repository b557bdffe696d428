"""Units and currencies, by what they measure: two of one family differ in size."""

import re

_FAMILIES = (
    ("mm millimeter millimetre \u6beb\u7c73", "cm centimeter centimetre \u5398\u7c73",
     "dm \u5206\u7c73", "m meter metre \u7c73",
     "km kilometer kilometre kmh kph \u5343\u7c73 \u516c\u91cc",
     "in inch inches", "ft foot feet", "yd yard", "mi mile mph"),
    ("mg milligram", "g gram \u514b", "kg kilogram \u5343\u514b \u516c\u65a4", "lb lbs pound",
     "oz ounce", "ton tonne"),
    ("ms", "s sec second \u79d2", "min minute \u5206\u949f", "h hr hour \u5c0f\u65f6",
     "day \u5929", "week", "month", "year \u5e74", "decade", "century centuries"),
    ("ml mL milliliter millilitre", "l L liter litre", "gal gallon", "quart", "pint", "cup"),
    ("$ dollar usd", "cent \u00a2 penny pennies", "nickel", "dime", "\u20ac euro eur",
     "\u00a3 gbp pound", "\u00a5 yen yuan \u5143", "\u20b9 rupee"),
    ("acre", "hectare"),
    ("rad radian", "degree"),
    ("am", "pm"),
    ("kelvin", "celsius", "fahrenheit"),
    ("bit", "byte", "KB kilobyte", "MB megabyte", "GB gigabyte", "TB terabyte"),
    ("N newton", "kN"),
    ("J joule", "kJ kilojoule", "cal calorie", "kcal"),
    ("mW milliwatt", "W watt", "kW kilowatt", "MW megawatt"),
    ("Pa", "kPa"),
    ("K",), ("C",), ("F",), ("V volt",), ("A ampere",), ("Hz",),
)  # fmt: skip
_UNITS: dict[str, list[tuple[int, int]]] = {}
"""By word, its families and which unit of these it is; a pound is of two."""
for _family, _members in enumerate(_FAMILIES):
    for _number, _spellings in enumerate(_members):
        for _spelling in _spellings.split():
            _UNITS.setdefault(_spelling, []).append((_family, _number))
_WORD = re.compile(r"[A-Za-z]+|[$\u00a2\u20ac\u00a3\u00a5\u20b9]|[\u4e00-\u9fff]+")

Units = dict[int, frozenset[int]]
"""By what is measured, the units of it."""


def is_unit(word: str) -> bool:
    """Returns whether a word, or a single letter, is the sign or the name of a unit."""
    return bool(_units(word))


def units_in(text: str) -> Units:
    """Returns the units that a text names, by what they measure."""
    units: dict[int, set[int]] = {}
    text = re.sub(r"\b([apAP])\.?\s?[mM]\b\.?", lambda match: f"{match[1].lower()}m", text)
    for word in _WORD.findall(text):
        for family, unit in _units(word):
            units.setdefault(family, set()).add(unit)
    return {family: frozenset(members) for family, members in units.items()}


def _units(word: str) -> list[tuple[int, int]]:
    lower = word.lower()
    plain = word.removeprefix("\u5e73\u65b9").removeprefix("\u7acb\u65b9")
    long = (lower, lower.removesuffix("s")) if len(lower) > 2 else ()
    return next((_UNITS[form] for form in (plain, *long) if form in _UNITS), [])
