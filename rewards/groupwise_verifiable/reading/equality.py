"""Whether two single values are equal, in a form and a notation that gold has."""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from groupwise_verifiable.reading.form import (
    compounds,
    has_root_below,
    notation,
    outside,
    sums,
)
from groupwise_verifiable.reading.marks import Marked, peeled
from groupwise_verifiable.reading.measures import DEGREE, MECHANICAL, RADIAN, Unit, is_unit
from groupwise_verifiable.reading.node import Node, key, number, terms
from groupwise_verifiable.reading.operations import left_to_compute
from groupwise_verifiable.reading.question import Question
from groupwise_verifiable.reading.value import equivalent, proportional, rational
from groupwise_verifiable.reading.words import FILLING, rises, stem

_SHORT = frozenset({"No", "NO", "no"})


@dataclass(frozen=True)
class Equality:
    """question: what the prompt says; strict: whether form counts, not value alone."""

    question: Question
    strict: bool = True

    def same(self, gold: Node, answer: Node) -> bool:
        """Returns whether an answer, with its unit, is gold."""
        marked_gold, marked_answer = peeled(gold), peeled(answer)
        marked_answer = self._converted(marked_gold, marked_answer)
        if not self.units_agree(marked_gold, marked_answer):
            return False
        if not self.words_agree(marked_gold, marked_answer):
            return False
        nodes = marked_gold.node, marked_answer.node
        if any(node.kind in ("text", "dots") for node in nodes):
            return nodes[0].kind == nodes[1].kind and _words(nodes[0]) == _words(nodes[1])
        if not self._bases_agree(*nodes):
            return False
        if self.strict and not (self._is_finished(*nodes) and self._in_notation(gold, answer)):
            return False
        return any(
            self._equal(value, _scaled(marked_answer.node, marked_answer.factor))
            for value in self._values_of_gold(marked_gold, marked_answer)
        )

    def _values_of_gold(self, gold: Marked, answer: Marked) -> list[Node]:
        """What gold may mean: 50% is 50 or one half, 5 million may be counted in millions."""
        values = [_scaled(gold.node, gold.factor)]
        if self.question.counts_in(answer.factor) and gold.factor == 1:
            values.append(_scaled(gold.node, answer.factor))
        if self.question.counts_in(gold.factor) and answer.factor == 1:
            values.append(gold.node)
        if gold.percent == answer.percent:
            return values
        about = self.question.is_about("percent")
        if answer.percent:  # 50% for 50 or for 0.5
            value = rational(gold.node)
            share = value is not None and 0 < abs(value) < 1
            plain = values if about else []
            return plain + ([_scaled(gold.node, Fraction(100))] if share else [])
        return values + ([] if about else [_scaled(gold.node, Fraction(1, 100))])

    def units_agree(self, gold: Marked, answer: Marked) -> bool:
        """Returns whether an answer has no unit of another size than gold or the prompt."""
        if answer.degrees and not (
            gold.degrees or self.question.is_about("degrees") or self.question.is_silent
        ):
            return False
        if answer.percent and not gold.units and self.question.answer_units:
            return False
        has_pi = any(part.text == "pi" for part in gold.node.walk())
        if answer.degrees and has_pi and not gold.degrees:
            return False
        in_radians = any(RADIAN in unit for unit in answer.units)
        if in_radians and not has_pi and self.question.is_about("degrees") and not gold.units:
            return self.question.is_about("radians")
        if answer.units and not gold.units and self.question.is_about("percentage"):
            return False
        golds = frozenset[Unit]().union(*gold.units) or frozenset({DEGREE} if gold.degrees else ())
        return all(self.question.fits(unit, golds) for unit in answer.units)

    def _converted(self, gold: Marked, answer: Marked) -> Marked:
        """The answer in gold's unit, 72 minutes in hours, where form does not count and the prompt
        asks for no unit; else as it is."""
        units = gold.units, answer.units
        if self.strict or self.question.answer_units or [len(each) for each in units] != [1, 1]:
            return answer
        for one, other in product(*(each[0] for each in units)):
            if one.dimension == other.dimension and one.bases <= MECHANICAL | {"current"}:
                factor = answer.factor * other.size / one.size
                return replace(answer, units=gold.units, factor=factor)
        return answer

    def words_agree(self, gold: Marked, answer: Marked) -> bool:
        """Returns whether the words around an answer change nothing.

        Before it they must say that it follows; behind it there may be units, words of the prompt
        and of gold, and one more: what is counted.
        """
        if answer.is_changed(gold, self.question.stems):
            return False
        if {rises(" ".join(answer.label)), rises(self.question.text)} == {True, False}:
            return False
        new = [word for word in answer.words if word not in gold.words]
        counted = {stem(word) for word in gold.words if not is_unit(word) and word not in FILLING}
        other = new or (answer.units and not gold.units)
        if counted and other and not counted & {stem(word) for word in answer.words}:
            return False
        known = self.question.stems
        unknown = [w for w in new if not (is_unit(w) or w in FILLING or stem(w) in known)]
        return len(unknown) <= 1

    def _bases_agree(self, gold: Node, answer: Node) -> bool:
        bases = [
            node.text.partition("_")[2] if node.kind == "based" else None for node in (gold, answer)
        ]
        if bases[0] is None and bases[1] is None:
            return True
        if bases[0] is not None and bases[1] is not None:
            return bases[0] == bases[1]
        expected = self.question.base()
        if bases[1] is None or expected is None:
            return bases[1] is None or self.question.has_base(bases[1])
        if int(bases[1]) == expected:
            return True
        written = Node("based", text=f"{gold.text}_{expected}")
        return gold.kind == "number" and rational(written) == rational(answer)

    def _is_finished(self, gold: Node, answer: Node) -> bool:  # noqa: PLR0911 - a case for each kind
        """Whether an answer leaves nothing to compute that gold does not leave."""
        if answer.unknowns - gold.unknowns:
            return False
        left = left_to_compute(answer) - left_to_compute(gold)
        in_any_form = self.question.is_about("calculus") and bool(gold.unknowns)
        if set(left) - ({"term"} if in_any_form else set()):
            return False
        if self.question.is_about("rationalizing") and has_root_below(answer):
            return False
        if not (gold.unknowns or answer.unknowns):
            return True
        factored = compounds(gold)
        if factored != compounds(answer):
            return in_any_form
        if factored and len(terms(gold)) == 1 and not _same_factors(gold, answer):
            return False
        quotients = gold.kind == answer.kind == "div" and gold.args[1].unknowns
        return not quotients or proportional(gold.args[0], answer.args[0])

    def _in_notation(self, gold: Node, answer: Node) -> bool:
        """Whether an answer has the notation that the prompt asks for, if gold has it."""
        kinds = [notation(node) for node in (gold, answer)]
        if kinds[0] == kinds[1]:
            return True
        has_name = kinds[0] in ("fraction", "decimal", "mixed", "scientific")
        return not (has_name and self.question.asks_for(kinds[0]))

    def _equal(self, gold: Node, answer: Node) -> bool:
        if gold.kind == "based" or answer.kind == "based":
            digits = [node.text.partition("_")[0].lstrip("0") for node in (gold, answer)]
            return digits[0] == digits[1]
        return key(gold) == key(answer) or equivalent(
            gold, answer, exact=self.strict, positive=self.question.is_about("positive")
        )


def _same_factors(gold: Node, answer: Node) -> bool:
    """Whether two products have the same sums, up to signs, and the same beside them."""
    left = sums(answer)
    for factor in sums(gold):
        place = next((n for n, one in enumerate(left) if proportional(factor, one)), None)
        if place is None or not _are_opposite_or_equal(factor, left.pop(place)):
            return False
    return not left and outside(gold) == outside(answer)


def _are_opposite_or_equal(one: Node, other: Node) -> bool:
    return equivalent(one, other) or equivalent(Node("neg", (one,)), other)


def _scaled(node: Node, factor: Fraction) -> Node:
    if factor == 1:
        return node
    above, below = factor.as_integer_ratio()
    scaled = Node("mul", (node, number(above)))
    return scaled if below == 1 else Node("div", (scaled, number(below)))


def _words(node: Node) -> str:
    words = node.text.replace("-", " ").split() if node.kind == "text" else []
    return " ".join(word if len(word) < 3 and word not in _SHORT else stem(word) for word in words)
