"""What stands around an expression: units, currencies, percent, degrees, words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from groupwise_verifiable.reading.measures import Meanings, is_power, is_unit, units_in
from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.words import LARGE, LINKING, changes, stem

_SUBJECTS = frozenset({"he", "she", "it", "they", "we", "you", "i", "there"})  # "She sold 5" says 5


@dataclass(frozen=True)
class Marked:
    """An expression without marks, and what they were.

    factor: of "million" and "dozen"; units: in their order, see `units_in`; label, words: those
    before it, and behind it, in lower case; a label of "Total: 5" and "Total = 5" ends in a colon.
    """

    node: Node
    percent: bool = False
    degrees: bool = False
    factor: Fraction = Fraction(1)
    units: tuple[Meanings, ...] = ()
    label: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def is_changed(self, gold: Marked, stems: frozenset[str] = frozenset()) -> bool:
        """Returns whether words that gold lacks make another value: "half of 5", "5 or more".

        stems: those of the prompt's words, which may say what is counted: 5 pairs.
        """
        is_plain = self.has_plain_label or self._repeats(stems)
        if self.label != gold.label and not (is_plain and gold.has_plain_label):
            return True
        new = (
            word
            for before, word in pairwise(("", *self.words))
            if word not in gold.words
            and word != "different"
            and not (word == "to" and before in ("way", "ways"))
        )
        return any(changes(word, counted=stem(word) in stems) for word in new)

    def _repeats(self, stems: frozenset[str]) -> bool:
        """Whether the words before the number are the prompt's, and change nothing."""
        return not any(changes(word) or stem(word) not in stems for word in self.label)

    @property
    def has_plain_label(self) -> bool:
        """Whether the words before the number say that it follows, as "Total:", "she makes"."""
        if not self.label:
            return True
        if self.label[-1] == ":":
            return not {"not", "wrong", "false"} & set(self.label)
        last = self.label[-1]
        if self.label[0] in _SUBJECTS and not any(map(changes, self.label)):
            return True
        links = (
            last in LINKING
            or self.label[-2:] == ("total", "of")
            or last.endswith(("\u662f", "\u4e3a", "\u5171", "\u5f97", "\u7ea6", "\u6709"))
        )
        return links and not any(map(changes, self.label))


@lru_cache(maxsize=4096)
def peeled(node: Node) -> Marked:  # noqa: PLR0911 - a case for each kind
    """Returns an expression without the marks around it and at its end, as in 36\\pi cm^2."""
    kind, args = node.kind, node.args
    if kind in ("percent", "degrees"):
        inner = peeled(args[0])
        if kind == "percent":
            return replace(inner, percent=True)
        return replace(inner, degrees=True)
    if kind == "money":
        inner = peeled(args[0])
        return replace(inner, units=(*inner.units, *units_in(node.text or "$")))
    if kind == "unit" and node.text in LARGE:
        inner = peeled(args[0])
        return replace(inner, factor=inner.factor * LARGE[node.text])
    if kind == "label":
        inner = peeled(args[0])
        return replace(inner, label=tuple(node.text.lower().replace(":", " :").split()))
    if kind == "unit":
        inner = peeled(args[0])
        names = re.findall(r"[^\W\d_]+", re.sub(r"\bin all\b|\bleft over\b", "left", node.text))
        units = units_in(re.sub(r"\bin (?=[a-z])", " ", node.text))  # no inch: "5 books in a bag"
        words = (
            name.lower() for name in names if not (is_unit(name) or (units and is_power(name)))
        )
        return replace(inner, units=(*inner.units, *units), words=(*inner.words, *words))
    if kind in ("mul", "div", "add", "neg", "ratio", "pm", "mixed") and args:
        last = peeled(args[-1])
        if last.node != args[-1]:
            return replace(last, node=replace(node, args=(*args[:-1], last.node)))
    return Marked(node)
