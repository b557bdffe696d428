r"""Reads the words behind a value: units, large numbers, the end of a sentence.

unit   = [ unit ] | ( unit ) | \frac{unit}{unit} | part ((/ | per | \cdot | -)? part)*
part   = (square | cubic)? sign (^ exponent | squared | cubed)? | ( unit )
"""

from groupwise_verifiable.reading.measures import is_currency, is_power, is_unit, units_in
from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.stream import END, Stream, UnreadableError
from groupwise_verifiable.reading.words import LARGE, changes

_CLOSING = {"[": "]", "(": ")"}
_PREFIXED = ("\u03bc", "k", "M", "G")  # written apart from the unit: \mu\text{F}
_NAMED = {"Omega": "\u03a9", "mu": "\u03bc"}


class Units(Stream):
    """The part of the grammar that reads units."""

    def joins(self) -> bool:
        """Whether the next word joins two expressions: and, or, the "to" of a ratio."""
        word = self.next.text.lower()
        return word in ("and", "or") or (word == "to" and self.after().kind == "number")

    def unit(self, node: Node) -> Node | None:
        """The node with the unit behind it, or other words; None where there are none."""
        is_power = (self.next.text, self.after().text) == ("m", "^")  # 36\pi m^3
        letters = _is_quantity(node) or (node.text == "pi" and is_power)
        start = self.position
        if self.next.text in _CLOSING and self.next.kind == "sign":
            text = self.bracketed_unit(letters=letters)
            return Node("unit", (node,), text) if text else None
        text = self.measure(letters=letters)
        if text and units_in(text):
            return Node("unit", (node,), text)
        self.position = start
        return self.counted(node) if self.next.kind == "word" and not self.joins() else None

    def bracketed_unit(self, *, letters: bool) -> str:
        """A unit, or what is counted, in brackets behind a number: 5 [km/h], 12 (ways)."""
        start = self.position
        closing = _CLOSING[self.next.text]
        self.position += 1
        unit = self.measure(letters=letters)
        text = unit or self.words()
        shares = any(
            word in ("per", "each", "in") or word.removesuffix("s") in LARGE or changes(word)
            for word in text.lower().split()
        )
        if text and (unit or not shares) and self.take(closing):
            return text
        self.position = start
        return ""

    def measure(self, *, letters: bool) -> str:
        """The spelling of a unit; "" where none begins. letters: whether a name may be one."""
        if self.next.text == r"\frac" and letters:
            return self.quotient()
        parts: list[str] = []
        while True:
            known = any(len(part) > 1 and is_unit(part) for part in parts)  # the h of km/h
            if part := self.part(letters=letters, known=known):
                parts.append(part)
            elif parts and self.next.text == "^":
                self.position += 1
                parts.append("^" + self.exponent())
            elif parts and self.next.text in ("/", "-", "*", r"\cdot", r"\times"):
                sign = self.next.text
                self.position += 1
                part = self.part(letters=letters, known=known) or self.below(letters=letters)
                if not part:
                    self.position -= 1
                    break
                parts += [sign, part]
            elif parts and self.next.text == "." and self.after().kind != "number":
                self.position += 1
            else:
                break
        return " ".join(parts) if self.ends_unit() or not _is_letters(parts) else ""

    def part(self, *, letters: bool, known: bool) -> str:  # noqa: PLR0911 - a case for each kind
        """The sign or the name of a unit, or a word that belongs to it; else "".

        known: whether the unit began by a word, so that its letters are no unknowns.
        """
        token, following = self.next, self.after()
        text = _NAMED.get(token.text, token.text)
        if token.kind in ("word", "function") and (is_unit(text) or is_power(text.lower())):
            if token.kind == "function" and (
                text not in ("min", "sec") or following.text in ("(", r"\{")
            ):
                return ""
            if text == "in" and following.kind in ("word", "name"):
                return ""
        elif token.kind == "word" and text.lower() == "per":
            if not (is_unit(following.text) or is_power(following.text)):
                return ""
        elif token.kind == "name" and letters and (known or token.text not in self.names):
            joined = text + _NAMED.get(following.text, following.text)
            if following.kind in ("name", "word") and text in _PREFIXED and is_unit(joined):
                self.position += 2
                return joined
            if not is_unit(text):
                return ""
        else:
            return ""
        self.position += 1
        return text

    def below(self, *, letters: bool) -> str:
        """A product of units in brackets behind a stroke."""
        if not self.take("("):
            return ""
        text = self.measure(letters=letters)
        return f"( {text} )" if text and self.take(")") else ""

    def quotient(self) -> str:
        self.position += 1
        sides = []
        for _ in range(2):
            text = self.measure(letters=True) if self.take("{") else ""
            if not text or not self.take("}"):
                return ""
            sides.append(text)
        return f"{sides[0]} / ( {sides[1]} )"

    def ends_unit(self) -> bool:
        """Whether letters that were read as a unit are no factors: nothing follows them."""
        return (
            self.next is END or self.next.text in (",", ")", "}", "]") or self.next.kind == "word"
        )

    def currency(self) -> str | None:
        """The sign or the code of a currency before a number."""
        if sign := self.take(r"\$", "$", "\u20ac", "\u00a3", "\u00a5", "\u20b9"):
            return sign.removeprefix("\\")
        if not self.starts_currency():
            return None
        code = self.next.text
        self.position += 1
        self.take(".")
        return code

    def starts_currency(self) -> bool:
        """Whether the next word is a currency, and a number follows."""
        following = self.after(2) if self.after().text == "." else self.after()
        return (
            self.next.kind == "word" and following.kind == "number" and is_currency(self.next.text)
        )

    def counted(self, node: Node) -> Node:
        """Words after an expression: what is counted, large numbers, the end of a sentence."""
        words: list[str] = []
        while True:
            token = self.next
            if token.kind == "word" and token.text.lower() in ("and", "or"):
                break
            if token.kind == "word":
                words.append(token.text)
            elif words and token.text in ("/", "-", "'") and self.after().kind in ("word", "name"):
                self.position += 1
                words += [token.text, self.next.text]
            elif words and token.text in (".",):
                pass
            else:
                break
            self.position += 1
        return _united(node, words)

    def exponent(self) -> str:
        """The digits of a unit's exponent, with its sign."""
        braced = self.take("{") is not None
        digits = "-" if self.take("-") else ""
        if self.next.kind != "number":
            raise UnreadableError
        digits += self.next.text
        self.position += 1
        if braced and not self.take("}"):
            raise UnreadableError
        return digits


def _united(node: Node, words: list[str]) -> Node:
    text = " ".join(words)
    first = words[0].lower().removesuffix("s") if words else ""
    if first in LARGE or words[:1] == ["dozen"]:
        scaled = Node("unit", (node,), first)
        rest = words[1:]
        return _united(scaled, rest) if rest else scaled
    if words and words[0].lower() in ("percent", "pct", "percentage"):
        marked = Node("percent", (node,))
        return _united(marked, words[1:]) if words[1:] else marked
    if words and words[0].lower() in ("degree", "degrees") and len(words) == 1:
        return Node("degrees", (node,))
    return Node("unit", (node,), text)


def _is_letters(parts: list[str]) -> bool:
    return all(len(part) == 1 or not part.isalpha() for part in parts)


def _is_quantity(node: Node) -> bool:
    if node.kind in ("neg", "money", "pow"):
        return _is_quantity(node.args[0])
    return node.kind in ("number", "mixed", "div", "repeating", "mul")
