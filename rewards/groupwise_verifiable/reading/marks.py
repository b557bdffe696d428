"""What stands around an expression: units, currencies, percent, degrees, words."""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.words import LARGE, changes, units_in


@dataclass(frozen=True)
class Marked:
    """An expression without marks, and what they were.

    factor: of "million" and "dozen"; units: of what size, see `units_in`; words: all of them, in
    lower case; changed: whether one of them makes another value of the number ("half of 5").
    """

    node: Node
    percent: bool = False
    degrees: bool = False
    factor: Fraction = Fraction(1)
    units: dict[int, frozenset[int]] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return any(map(changes, self.words))


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
        return replace(inner, units={**inner.units, **units_in("$")})
    if kind == "unit" and node.text in LARGE:
        inner = peeled(args[0])
        return replace(inner, factor=inner.factor * LARGE[node.text])
    if kind in ("unit", "label"):
        inner = peeled(args[0])
        words = tuple(word for word in node.text.lower().replace("-", " ").split() if word)
        # Only a unit right after the number is the answer's: "18 dollars per day" is of dollars.
        first = node.text.replace("/", " per ").split(" per ")[0] if kind == "unit" else ""
        return replace(
            inner, units={**inner.units, **units_in(first)}, words=(*inner.words, *words)
        )
    if kind in ("mul", "div", "add", "neg", "ratio", "pm", "mixed") and args:
        last = peeled(args[-1])
        if last.node != args[-1]:
            return replace(last, node=replace(node, args=(*args[:-1], last.node)))
    return Marked(node)
