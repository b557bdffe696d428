"""What a prompt says about its answer: its unknowns, its expressions, the notation it asks for."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from groupwise_verifiable.reading.form import reducible, unmarked
from groupwise_verifiable.reading.grammar import read
from groupwise_verifiable.reading.intervals import intervals
from groupwise_verifiable.reading.measures import (
    MECHANICAL,
    QUANTITIES,
    Meanings,
    Unit,
    composes,
    is_unit,
    leading_unit,
    named_units,
    units_in,
)
from groupwise_verifiable.reading.node import Node, key
from groupwise_verifiable.reading.notation import FORMULA
from groupwise_verifiable.reading.subjects import NOTATIONS, SUBJECTS
from groupwise_verifiable.reading.words import ASKED, LARGE, stem

_LONGEST = 20_000  # characters of a prompt that are read, from its end
_MOST = 60  # formulas of a prompt
# Formulas in prose without delimiters: runs of numbers, single letters, brackets and signs.
_PLAIN = re.compile(
    r"(?:[0-9.,:%]|(?<![A-Za-z'])(?!a\s+[a-z]{2})[A-Za-z](?![A-Za-z])"
    r"|[-+*/^()=!|<>{}\[\] \u2212\u00d7\u00f7\u2264\u2265\u221a\u00b2\u00b3\u00bc-\u00be]){1,300}"
)
_NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:\s*/\s*[0-9]+|\s*[eE][-+]?[0-9]+|\s*%|)")
_BASES = {2: "binary|two", 8: "octal|eight", 16: "hexadecimal|sixteen", 10: "decimal|ten"}
_ANSWER_NAME = re.compile(
    r"(?:[Ss]olve (?:[^.?!]{0,200}\s)?for\s*\$?|(?:[Ff]ind|[Cc]ompute|value of)\s*\$)"
    r"([a-z](?:_(?:[a-z0-9]|\{[a-z0-9]{1,9}\}))?)\$?(?![A-Za-z({^_'])"
)
_ANSWER_UNIT = re.compile(
    r"\b(?:[Hh]ow many|in|[Nn]umber of|[Cc]onvert [^.?!]{1,60}? to)\b|\((?=in\b)"
)
_POWERS = {0xB2: "^2", 0xB3: "^3"}
_MEASURED_SUBJECT = re.compile(
    r"(?:what(?: is|'s|)|how long is|find|calculate|compute|determine) "
    r"(?:the |its |their )?(?:[a-z]+'s )?"
    r"(?:total |surface |lateral |average |mean |constant |net |kinetic |potential )*"
    rf"({'|'.join(QUANTITIES)})\b(?! of the (?:number|ages))",
    re.IGNORECASE,
)
_LOSS = re.compile(r"\b(?:how (?:many|much)|what)\b[^.?!]{0,100}\b(lost|missing)\b")
_LETTER = r"(?<![A-Za-z'])[A-Za-z](?![A-Za-z])"
_MEASURED = re.compile(rf"(?<=[0-9])\s*{_LETTER}(?:\s?[/^*]\s*-?(?:[0-9]+|{_LETTER}))*")
_PROSE_UNIT = re.compile(r"(?<=[0-9]) ([A-Za-z])(?:\^[23])?(?=\s+[a-z]{2,}|[.,;?](?:\s|\Z))")
_DRESSING = re.compile(r"\\(?:text|math)[a-z]*|\\[,;: ]|[{}~]|(?<!\\)\$(?![0-9])|\\(?=\$)")
# A dollar sign of money, which opens no formula: "$4 each", "\$4", "$4,".
_MONEY = re.compile(
    r"\\\$|\$[0-9][0-9,.]*(?:\s+(?!and\b|or\b)[A-Za-z]{2,}|[.,;?!)](?:\s|\Z)|\s*\Z)"
)
_PAYMENT = re.compile(
    r"\b(?:cost|price|pay|paid|earn|spend|spent|money|bill|salary|wage|sell|sold|buy|bought|charge"
    r"|profit|save[sd]?|worth|coin|loan|interest|invest|tax|tip|budget)",
    re.IGNORECASE,
)

_COUNT = Unit(frozenset(), Fraction(1))


@dataclass(frozen=True)
class Question:
    """What a prompt says of its answer.

    names: letters of its formulas; formulas: their keys, as far as they can be read; keys: those of
    their parts, too; unreduced: values of its fractions that are not in lowest terms; regions: of
    its relations; units: all it names; answer_units, answer_name: the units and the unknown that it
    asks for in so many words; stems: of its words.
    """

    text: str
    names: frozenset[str]
    formulas: frozenset[object]
    keys: frozenset[object]
    unreduced: frozenset[Fraction]
    regions: frozenset[object]
    units: frozenset[Unit]
    answer_units: frozenset[Unit]
    answer_name: str | None
    stems: frozenset[str]

    def asks_for(self, notation: str) -> bool:
        """Returns whether the prompt asks for a notation: `fraction`, `decimal`, `simplest` ..."""
        return NOTATIONS[notation].search(self.text) is not None

    def is_about(self, subject: str) -> bool:
        """Returns whether the prompt speaks of percent, degrees, bases and so on."""
        return SUBJECTS[subject].search(self.text) is not None

    def fits(self, meanings: Meanings, golds: frozenset[Unit] = frozenset()) -> bool:
        """Returns whether an answer's unit is that of gold, or one that the prompt allows.

        A unit that the prompt asks for excludes all others, but for the powers of one in a prompt
        about areas and volumes; units that it names exclude others of the same dimension, and other
        dimensions that no product of them has.
        """
        return any(self._fits(unit, golds) for unit in meanings)

    def _fits(self, unit: Unit, golds: frozenset[Unit]) -> bool:  # noqa: PLR0911 - a case for each kind
        expected = golds or self.answer_units
        if any(unit.equals(one) for one in expected):
            return True
        if golds or any(unit.dimension == one.dimension for one in expected):
            return False
        power = dict(unit.dimension).get("length") if unit.bases == {"length"} else None
        wanted = _MEASURED_SUBJECT.search(self.text)
        if wanted and unit.bases <= MECHANICAL and unit.dimension != QUANTITIES[wanted[1].lower()]:
            return False
        if expected:
            subject = {2: "area", 3: "volume"}.get(power or 0)
            is_power = subject is not None and self.is_about(subject)
            if not is_power and not (self.is_about("rate") and _is_rate(unit, expected | {_COUNT})):
                return False
        if any(unit.dimension == one.dimension for one in self.units):
            return any(unit.equals(one) for one in self.units)
        if unit.bases == {"money"} and _PAYMENT.search(self.text):
            return True
        named = {one for one in self.units if one.bases not in ({"time"}, {"noon"}, {"angle"})}
        bases = frozenset[str]().union(*(one.bases for one in self.units))
        return not named or (unit.bases <= bases and composes(unit, self.units))

    def counts_in(self, factor: Fraction) -> bool:
        """Returns whether the prompt asks for millions, for a million, and so on."""
        words = "|".join(word for word, size in LARGE.items() if size == factor)
        pattern = rf"(?:how many|\bin|number of) (?:[a-z]+ ){{0,2}}(?:{words})s?\b"
        return bool(words) and re.search(pattern, self.text, re.IGNORECASE) is not None

    def base(self) -> int | None:
        """Returns the base in which the prompt wants the answer."""
        match = re.search(r"\b(?:in|to|into) base[- ]*\$?([0-9]+)", self.text)
        named = re.search(r"\b(?:in|to|into|as an?) (binary|octal|hexadecimal)\b", self.text)
        names = {names.partition("|")[0]: base for base, names in _BASES.items()}
        return int(match[1]) if match else names[named[1]] if named else None

    def has_base(self, base: str) -> bool:
        """Returns whether the prompt speaks of a base; ten counts where it speaks of any."""
        name = _BASES.get(int(base), base)
        pattern = rf"\bbase[- ]*\$?\\?\(?(?:{base}|{name})(?![0-9])|\b(?:{name})\b"
        is_named = re.search(pattern, self.text, re.IGNORECASE) is not None
        return self.is_about("bases") and (is_named or base == "10")

    @property
    def is_silent(self) -> bool:
        """Whether nothing is known of the prompt, so that it doubts no name and no unit."""
        return not self.text.strip()

    def __hash__(self) -> int:
        return hash(self.text)


@lru_cache(maxsize=512)
def read_question(prompt: str) -> Question:
    """Returns what a prompt says of its answer."""
    prompt = prompt[-_LONGEST:]
    formulas = _formulas(prompt)
    names = frozenset[str]().union(*(_letters(formula) for formula in formulas))
    plain = _plain(prompt)
    wanted = _wanted_units(plain, names)
    names -= _unit_letters(wanted, plain)
    answer_name = _ANSWER_NAME.search(prompt)
    nodes: list[Node] = []
    parts: list[Node] = []
    for formula in formulas:
        node = read(formula, names)
        if node is not None:
            nodes.append(node)
            parts += [node, *(node.args if node.kind in ("relation", "list") else ())]
            parts += [part for part in node.walk() if part.kind in ("tuple", "set", "matrix")]
    return Question(
        text=prompt,
        names=names,
        formulas=frozenset(key(node) for node in nodes),
        keys=frozenset(key(unmarked(part)) for part in parts),
        unreduced=frozenset(value for part in parts for value in reducible(part)),
        regions=frozenset(
            region
            for part in parts
            if part.kind in ("relation", "tuple") and (region := intervals(part))
        ),
        units=named_units(plain),
        answer_units=frozenset[Unit]().union(*(units_in(part)[0] for part in wanted)),
        answer_name=answer_name[1].replace(" ", "")
        if answer_name
        else _sole_unknown(prompt, names),
        stems=_stems(prompt),
    )


def _sole_unknown(prompt: str, names: frozenset[str]) -> str | None:
    """The one letter of a prompt that wants an equation solved."""
    return next(iter(names)) if len(names) == 1 and re.match(r"\s*Solve\b", prompt) else None


def _stems(prompt: str) -> frozenset[str]:
    """The stems of a prompt's words; of `ASKED` those alone that it asks for, not $3 each."""
    stems = {stem(word) for word in re.findall(r"[A-Za-z]+", prompt)} - ASKED
    if SUBJECTS["share"].search(prompt):
        stems |= {"each", "apiece"}
    return frozenset(stems | set(_LOSS.findall(prompt.lower())))


def _is_rate(unit: Unit, expected: frozenset[Unit]) -> bool:
    """Whether a unit is an expected one per something else: miles per hour for "how many miles"."""
    return any(
        one.dimension < unit.dimension
        and all(power < 0 for _, power in unit.dimension - one.dimension)
        for one in expected
    )


def _plain(prompt: str) -> str:
    """A prompt without the dressing of its units, and dollar signs only where they are money."""
    plain = _DRESSING.sub(" ", prompt.translate(_POWERS))
    is_money = _MONEY.search(prompt) or len(re.findall(r"(?<!\\)\$", prompt)) % 2
    return plain if is_money else plain.replace("$", " ")


def _wanted_units(plain: str, names: frozenset[str]) -> list[str]:
    """The units that stand behind "in" and "how many"."""
    places = [match.end() for match in _ANSWER_UNIT.finditer(plain)]
    units = [leading_unit(plain[place : place + 60], names) for place in places[-_MOST:]]
    return [unit for unit in units if unit]


def _unit_letters(wanted: list[str], plain: str) -> frozenset[str]:
    """The letters that are units alone: the m and the s of "in m/s" and of "5 m long"."""
    rest = _MEASURED.sub(" ", plain)
    for unit in wanted:
        rest = rest.replace(unit, " ") if len(unit) > 1 else rest
    letters = re.findall(_LETTER, " ".join(unit for unit in wanted if len(unit) > 1))
    letters += filter(is_unit, _PROSE_UNIT.findall(plain))
    for measured in _MEASURED.findall(plain):  # 340 m/s
        parts = re.findall(_LETTER, measured)
        letters += parts if len(parts) > 1 and all(map(is_unit, parts)) else []
    return frozenset(letters) - set(re.findall(_LETTER, rest))


def _formulas(prompt: str) -> list[str]:
    """The formulas in a prompt, delimited or not, and the numbers in its prose."""
    delimited = [next(g for g in m.groups() if g is not None) for m in FORMULA.finditer(prompt)]
    rest = FORMULA.sub(" ? ", prompt)
    plain = [match.group().strip(" .,:?;-") for match in _PLAIN.finditer(rest)]
    numbers = [match.group() for match in _NUMBER.finditer(rest)]
    commands = [line for line in rest.splitlines() if "\\" in line and len(line) <= 300]
    every = [part for part in (*delimited, *plain, *numbers, *commands) if 0 < len(part) <= 600]
    return [part for part in dict.fromkeys(every) if re.search(r"[0-9A-Za-z]", part)][:_MOST]


def _letters(formula: str) -> frozenset[str]:
    plain = re.sub(r"\\(?:text|mathrm)[a-z]*\s*\{[^{}]*\}|\\[a-zA-Z]+", " ", formula)
    if re.search(r"[A-Za-z]{4,}", plain):  # prose between two dollar signs
        return frozenset()
    return frozenset(re.findall(r"[A-Za-z]", plain))
