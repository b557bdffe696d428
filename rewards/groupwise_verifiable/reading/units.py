"""Reads the words behind a value: units, large numbers, the end of a sentence."""

from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.stream import END, Stream
from groupwise_verifiable.reading.words import LARGE

_UNIT_LETTERS = frozenset("mgshLldKNJWVAC")


class Units(Stream):
    """The part of the grammar that reads units."""

    def joins(self) -> bool:
        """Whether the next word joins two expressions: and, or, the "to" of a ratio."""
        word = self.next.text.lower()
        return word in ("and", "or") or (word == "to" and self.after().kind == "number")

    def is_unit_letter(self, node: Node) -> bool:
        """Whether a letter after a number is a unit: the m of 5 m, unless m is an unknown."""
        token = self.next
        if token.kind != "name" or token.text not in _UNIT_LETTERS or token.text in self.names:
            return False
        ends = ("^", "/", ",", ")", "}")
        following = self.after()
        return _is_quantity(node) and (following in (END,) or following.text in ends)

    def unit(self, node: Node) -> Node:
        """Words after an expression: a unit, large numbers, the end of a sentence."""
        words: list[str] = []
        while True:
            token = self.next
            if token.kind == "word" and token.text.lower() in ("and", "or"):
                break
            if token.kind == "word" or (not words and token.kind == "name"):
                words.append(token.text)
            elif words and token.text == "^":
                self.position += 1
                words.append("^" + self.exponent())
                continue
            elif (
                words
                and token.text in ("/", "-", "'", "*", r"\cdot")
                and (self.after().kind in ("word", "name"))
            ):
                self.position += 1
                words += [token.text, self.next.text]
            elif words and token.text in (".",):
                pass
            else:
                break
            self.position += 1
        return _united(node, words)

    def exponent(self) -> str:
        """The digits of a unit's exponent."""
        if not self.take("{"):
            self.position += 1
            return self.after(-1).text
        digits = ""
        while self.next is not END and not self.take("}"):
            digits += self.next.text
            self.position += 1
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


def _is_quantity(node: Node) -> bool:
    if node.kind in ("neg", "money"):
        return _is_quantity(node.args[0])
    return node.kind in ("number", "mixed", "div", "repeating")
