"""Whether an answer is the gold one: its kind and form are gold's, and its values are equal.

Nothing is solved or simplified. Expressions have equal values at a few points; what an expression
leaves to compute is counted in the tree, as it is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from groupwise_verifiable.mathematics.form import compounds, left_to_compute, outside, reducible
from groupwise_verifiable.mathematics.intervals import Interval, intervals
from groupwise_verifiable.mathematics.items import (
    are_named_differently,
    in_order,
    is_named,
    is_reduced,
    items,
    last_side,
    matched,
    rows,
    unlabelled,
)
from groupwise_verifiable.mathematics.marks import Marked, peeled
from groupwise_verifiable.mathematics.node import Node, key, number, terms
from groupwise_verifiable.mathematics.question import Question, notation
from groupwise_verifiable.mathematics.value import (
    NoValueError,
    equal,
    equivalent,
    proportional,
    rational,
    value,
)


@dataclass(frozen=True)
class Comparison:
    """question: what the prompt says; strict: whether form counts, not value alone."""

    question: Question
    strict: bool = True

    def same(self, gold: Node, answer: Node) -> bool:
        """Returns whether an answer is the gold one."""
        if self.strict and self._is_copy(gold, answer):
            return False
        return self._same(gold, answer)

    def _same(self, gold: Node, answer: Node) -> bool:
        ours, theirs = peeled(gold), peeled(answer)
        gold, answer = unlabelled(gold), unlabelled(answer)
        if theirs.changed and theirs.words != ours.words:
            return False
        if key(gold) == key(answer):
            return True
        if answer.kind == "relation" and gold.kind == "ratio":
            return self._ends_in(answer, gold)
        if "ratio" in (ours.node.kind, theirs.node.kind):
            return self._same_ratio(gold, answer)
        regions = intervals(gold), intervals(answer)
        if regions[0] is not None and regions[1] is not None:
            return self._same_regions(gold, answer, regions[0], regions[1])
        if len(items(gold)) > 1 or len(items(answer)) > 1 or "set" in (gold.kind, answer.kind):
            return self._same_items(gold, answer)
        if "relation" in (gold.kind, answer.kind):
            return self._same_relation(gold, answer)
        if "matrix" in (gold.kind, answer.kind):
            return self._same_matrix(gold, answer)
        if "tuple" in (gold.kind, answer.kind):
            return self._same_tuple(gold, answer)
        return self._same_expression(gold, answer)

    # ---- copies

    def _is_copy(self, gold: Node, answer: Node) -> bool:
        """Whether the answer stands in the prompt, in another notation than gold's."""
        gold, answer = peeled(unlabelled(gold)).node, peeled(unlabelled(answer)).node
        if answer.kind == "relation" and gold.kind != "relation":
            if answer.text != "in" and intervals(answer) in self.question.regions:
                return True
            if set(answer.text.split()) == {"="}:
                answer = peeled(answer.args[-1]).node
        if answer.kind == "builder" and intervals(answer) in self.question.regions:
            return gold.kind != "builder"
        if answer.kind in ("name", "text") or key(answer) == key(gold):
            return False
        if answer.kind == gold.kind == "number" and notation(gold) == notation(answer):
            return False
        if key(answer) in self.question.keys:
            return True
        simplest = self.question.asks_for("simplest")
        unreduced = set(reducible(answer)) - set(reducible(gold))
        return bool(unreduced & self.question.unreduced) or bool(simplest and unreduced)

    # ---- several values

    def _same_items(self, gold: Node, answer: Node) -> bool:
        """Lists and sets, in any order; pairs, also without brackets, in theirs."""
        if "tuple" in (gold.kind, answer.kind):
            return self._same_in_order(gold, answer)
        golds, answers = items(gold), items(answer)
        if len(golds) != len(answers):
            return False
        if "set" in (gold.kind, answer.kind) and len(golds) == 1:
            return self._same(golds[0], answers[0])
        if are_named_differently(golds) or are_named_differently(answers):
            return matched(in_order(golds), in_order(answers), self._same)
        left = list(map(last_side, answers))
        for each in map(last_side, golds):
            place = next((n for n, one in enumerate(left) if self._same(each, one)), None)
            if place is None:
                return False
            del left[place]
        return True

    def _same_in_order(self, gold: Node, answer: Node) -> bool:
        """A tuple and a list without brackets: 1, 2 or x = 1, y = 2 for (1, 2)."""
        parts = [node.args if node.kind == "tuple" else items(node) for node in (gold, answer)]
        if "set" in (gold.kind, answer.kind) or any(
            any(map(is_named, each)) and not are_named_differently(each) for each in parts
        ):
            return False
        return matched(in_order(parts[0]), in_order(parts[1]), self._same)

    def _same_tuple(self, gold: Node, answer: Node) -> bool:
        if gold.kind != answer.kind or gold.text != answer.text:
            return False
        return matched(gold.args, answer.args, self._same)

    def _same_matrix(self, gold: Node, answer: Node) -> bool:
        ours, theirs = rows(gold), rows(answer)
        if ours is None or theirs is None or len(ours) != len(theirs):
            return False
        return all(matched(*pair, self._same) for pair in zip(ours, theirs, strict=True))

    def _same_ratio(self, gold: Node, answer: Node) -> bool:
        if not self._units_agree(peeled(gold), peeled(answer)):
            return False
        gold, answer = peeled(gold).node, peeled(answer).node
        if gold.kind != "ratio" or answer.kind != "ratio":
            if not (gold.kind == "ratio" or self.question.is_about("ratio") or not self.strict):
                if rational(gold) is None:
                    return False
            quotients = [
                Node("div", node.args) if node.kind == "ratio" and len(node.args) == 2 else node
                for node in (gold, answer)
            ]
            return self._same_expression(quotients[0], quotients[1])
        if len(gold.args) != len(answer.args):
            return False
        if (
            self.strict
            and not is_reduced(answer)
            and not matched(gold.args, answer.args, self._same_expression)
        ):
            return False
        if not is_reduced(gold):  # a time: 3:30 is not 1:10
            return matched(gold.args, answer.args, self._same_expression)
        return all(
            equivalent(Node("div", one), Node("div", other))
            for one, other in zip(pairwise(gold.args), pairwise(answer.args), strict=True)
        ) and all(not left_to_compute(part) - left_to_compute(gold) for part in answer.args)

    # ---- relations

    def _same_regions(
        self, gold: Node, answer: Node, ours: Sequence[Interval], theirs: Sequence[Interval]
    ) -> bool:
        if (gold.kind == "tuple") != (answer.kind == "tuple") and self.question.is_about("points"):
            return False
        if gold.kind == "relation" and answer.kind == "relation":
            names = [node.unknowns for node in (gold, answer)]
            if len(names[0]) == len(names[1]) == 1 and names[0] != names[1]:
                return False
        if len(ours) != len(theirs):
            return False
        return all(
            one.closed == other.closed and matched(one.ends, other.ends, self._same_expression)
            for one, other in zip(ours, theirs, strict=True)
        )

    def _same_relation(self, gold: Node, answer: Node) -> bool:
        equations = [
            node.kind == "relation" and set(node.text.split()) <= {"=", "approx"}
            for node in (gold, answer)
        ]
        if not equations[0] and gold.kind == "relation":
            return self._same_congruence(gold, answer)
        if not equations[1]:
            if answer.kind == "relation":
                return False
            return _is_solved(gold) and self._same(gold.args[-1], answer)
        if not equations[0]:
            return self._ends_in(answer, gold)
        if _is_solved(gold):
            if len(answer.args) > 2:
                return self._ends_in(answer, gold.args[-1])
            if not _is_solved(answer):
                return False
            return _names_one(gold.args[0], answer.args[0]) and self._same(
                gold.args[-1], answer.args[-1]
            )
        if len(gold.args) != 2 or len(answer.args) != 2:
            return False
        ours, theirs = _on_one_side(gold), _on_one_side(answer)
        if self.strict:
            left = left_to_compute(theirs) - left_to_compute(ours)
            if left or compounds(ours) != compounds(theirs):
                return False
        return proportional(ours, theirs)

    def _same_congruence(self, gold: Node, answer: Node) -> bool:
        if gold.kind != answer.kind or gold.text != answer.text:
            return False
        return matched(gold.args, answer.args, self._same_expression)

    def _ends_in(self, chain: Node, gold: Node) -> bool:
        """Whether a chain such as x = 2 + 3 = 5 ends in gold, and has no side with another value."""
        *before, last = chain.args
        if len(before) == 1 and last.kind == "name" and not gold.unknowns:
            before, last = [last], before[0]  # 5 = x
        if "approx" in chain.text:  # 1/3 = 0.333 is about the exact side
            sides = [side for side in (*before, last) if not side.unknowns]
            return bool(sides) and self._same(gold, sides[0])
        if not self._same(gold, last):
            return False
        return all(
            side.unknowns or side.kind in ("text", "call", "label") or _equals(side, last)
            for side in before
        )

    # ---- expressions

    def _same_expression(self, gold: Node, answer: Node) -> bool:
        ours, theirs = peeled(gold), peeled(answer)
        if not self._units_agree(ours, theirs):
            return False
        if any(node.kind in ("text", "dots") for node in (ours.node, theirs.node)):
            return ours.node.kind == theirs.node.kind and _words(ours.node) == _words(theirs.node)
        if not self._bases_agree(ours.node, theirs.node):
            return False
        if self.strict and not (
            self._is_finished(ours.node, theirs.node) and self._in_notation(gold, answer)
        ):
            return False
        return any(
            self._equal(scaled, _scaled(theirs.node, theirs.factor))
            for scaled in self._golds(ours, theirs)
        )

    def _golds(self, ours: Marked, theirs: Marked) -> list[Node]:
        """What gold may mean: 50% is 50 or one half, 5 million may be counted in millions."""
        golds = [_scaled(ours.node, ours.factor)]
        if self.question.counts_in(theirs.factor) and ours.factor == 1:
            golds.append(_scaled(ours.node, theirs.factor))
        if self.question.counts_in(ours.factor) and theirs.factor == 1:
            golds.append(ours.node)
        if ours.percent == theirs.percent:
            return golds
        about = self.question.is_about("percent")
        if theirs.percent:  # 50% for 50 or for 0.5
            number = rational(ours.node)
            share = number is not None and abs(number) <= 1
            plain = golds if about else []
            return plain + ([_scaled(ours.node, Fraction(100))] if share else [])
        return golds + ([] if about else [_scaled(ours.node, Fraction(1, 100))])

    def _units_agree(self, ours: Marked, theirs: Marked) -> bool:
        if theirs.degrees and not ours.degrees and not self.question.is_about("degrees"):
            return False
        for family, members in theirs.units.items():
            expected = ours.units.get(family) or self.question.units.get(family)
            if expected is not None and not members <= expected:
                return False
        return True

    def _bases_agree(self, gold: Node, answer: Node) -> bool:
        bases = [
            node.text.partition("_")[2] if node.kind == "based" else None for node in (gold, answer)
        ]
        if bases[0] is None and bases[1] is None:
            return True
        if bases[0] is not None and bases[1] is not None:
            return bases[0] == bases[1]
        return bases[1] is None or self.question.is_about("bases")

    def _is_finished(self, gold: Node, answer: Node) -> bool:
        """Whether an answer leaves nothing to compute that gold does not leave."""
        if answer.unknowns - gold.unknowns:
            return False
        if left_to_compute(answer) - left_to_compute(gold):
            return False
        if not (gold.unknowns or answer.unknowns):
            return True
        factored = compounds(gold)
        if factored != compounds(answer):
            return False
        if factored and len(terms(gold)) == 1 and outside(gold) != outside(answer):
            return False
        quotients = gold.kind == answer.kind == "div" and gold.args[1].unknowns
        return not quotients or proportional(gold.args[0], answer.args[0])

    def _in_notation(self, gold: Node, answer: Node) -> bool:
        """Whether an answer has the notation that the prompt asks for, if gold has it."""
        kinds = [notation(node) for node in (gold, answer)]
        if kinds[0] == kinds[1]:
            return True
        asked = kinds[0] in ("fraction", "decimal", "mixed", "scientific")
        if asked and self.question.asks_for(kinds[0]):
            return kinds[1] == "percent" and self.question.asks_for("percent")
        return True

    def _equal(self, gold: Node, answer: Node) -> bool:
        if gold.kind == "based" or answer.kind == "based":
            digits = [node.text.partition("_")[0].lstrip("0") for node in (gold, answer)]
            return digits[0] == digits[1]
        return key(gold) == key(answer) or equivalent(gold, answer)


def _scaled(node: Node, factor: Fraction) -> Node:
    if factor == 1:
        return node
    above, below = factor.as_integer_ratio()
    scaled = Node("mul", (node, number(above)))
    return scaled if below == 1 else Node("div", (scaled, number(below)))


def _words(node: Node) -> str:
    return " ".join(node.text.lower().replace("-", " ").split()) if node.kind == "text" else ""


def _equals(one: Node, other: Node) -> bool:
    """Whether two constants are equal; sides of a chain that have no value count as equal."""
    try:
        return equal(value(one), value(other))
    except NoValueError:
        return True


def _on_one_side(equation: Node) -> Node:
    """The left side minus the right one."""
    left, right = equation.args
    zero = Node("number", text="0")
    if right == zero:
        return left
    return Node("neg", (right,)) if left == zero else Node("add", (left, Node("neg", (right,))))


def _is_solved(node: Node) -> bool:
    """Whether an equation has a name, or a function of one, on its left side alone."""
    left, right = node.args[0], node.args[-1]
    if node.kind != "relation" or node.text.split()[0] != "=":
        return False
    return left.kind in ("call", "text") or (
        left.kind == "name" and not left.unknowns & right.unknowns
    )


def _names_one(gold: Node, answer: Node) -> bool:
    """Whether the left sides of two solved equations name the same: y and f(x) may be one."""
    if gold == answer or gold.kind == answer.kind:
        return gold == answer
    function = gold if gold.kind == "call" else answer
    return function.kind == "call" and function.args[0].kind == "name" and "'" not in function.text
