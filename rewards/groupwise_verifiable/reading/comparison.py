"""Whether an answer is the gold one: its kind and form are gold's, and its values are equal.

Nothing is solved or simplified. Expressions have equal values at a few points; what an expression
leaves to compute is counted in the tree, as it is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from groupwise_verifiable.reading.copies import is_copy
from groupwise_verifiable.reading.equality import Equality
from groupwise_verifiable.reading.form import compounds, notation
from groupwise_verifiable.reading.intervals import Interval, intervals
from groupwise_verifiable.reading.items import (
    are_named_differently,
    are_of_one_name,
    by_name,
    in_order,
    is_named,
    is_reduced,
    items,
    last_side,
    matched,
    names_of,
    sole,
    unlabelled,
)
from groupwise_verifiable.reading.marks import peeled
from groupwise_verifiable.reading.matrices import column, components, is_computed, rows
from groupwise_verifiable.reading.node import Node, key, spelling
from groupwise_verifiable.reading.operations import left_to_compute
from groupwise_verifiable.reading.question import Question
from groupwise_verifiable.reading.relations import (
    ends_in,
    is_solved,
    names_one,
    names_value,
    of_variable,
    on_one_side,
)
from groupwise_verifiable.reading.residues import progression, residues
from groupwise_verifiable.reading.value import equivalent, proportional, rational


@dataclass(frozen=True)
class Comparison:
    """question: what the prompt says; strict: whether form counts, not value alone."""

    question: Question
    strict: bool = True

    @cached_property
    def values(self) -> Equality:
        """The comparison of single values."""
        return Equality(self.question, self.strict)

    def same(self, gold: Node, answer: Node) -> bool:
        """Returns whether an answer is the gold one."""
        if self.strict and is_copy(gold, answer, self.question):
            return False
        return self._same(gold, answer)

    def _same(self, gold: Node, answer: Node) -> bool:  # noqa: C901, PLR0911, PLR0912 - a case for each kind
        marked_gold, marked_answer = peeled(gold), peeled(answer)
        gold, answer = by_name(unlabelled(gold)), by_name(unlabelled(answer))
        if not self.values.words_agree(marked_gold, marked_answer):
            return False
        if Node("name", text="empty") in (gold, answer) and "set" in (gold.kind, answer.kind):
            return False
        if gold.kind != "set":
            answer = sole(answer)
        if answer.kind == "list":  # x = 1, y = 2
            gold = column(gold)
        if key(gold) == key(answer) and not left_to_compute(answer) - left_to_compute(gold):
            return True
        if answer.kind == "relation" and gold.kind == "ratio":
            return ends_in(answer, gold, self.question, self._same)
        if "ratio" in (marked_gold.node.kind, marked_answer.node.kind):
            return self._same_ratio(gold, answer)
        if (classes := residues(gold)) is not None:
            others = residues(answer) or progression(answer, classes.modulus)
            return others is not None and classes.equals(others)
        regions = intervals(gold), intervals(answer)
        if regions[0] is not None and regions[1] is not None:
            return self._same_regions(gold, answer, regions[0], regions[1])
        if len(items(gold)) > 1 or len(items(answer)) > 1 or "set" in (gold.kind, answer.kind):
            return self._same_items(gold, answer)
        if "relation" in (gold.kind, answer.kind):
            return self._same_relation(gold, answer)
        if gold.kind in ("matrix", "tuple") and answer.kind in ("add", "neg", "mul", "name"):
            answer = components(answer) or answer
        if answer.kind in ("matrix", "tuple") and gold.kind in ("add", "neg", "mul", "name"):
            gold = components(gold) or gold
        is_column = gold.kind == "tuple" and answer.kind == "call" and answer.text == "binom"
        is_matrix = any(node.kind == "matrix" or is_computed(node) for node in (gold, answer))
        if is_matrix or is_column:
            return self._same_matrix(gold, answer)
        if "tuple" in (gold.kind, answer.kind):
            return self._same_tuple(gold, answer)
        return self.values.same(gold, answer)

    # ---- several values

    def _same_items(self, gold: Node, answer: Node) -> bool:  # noqa: C901, PLR0911 - a case for each kind
        """Lists and sets, in any order; pairs, also without brackets, in the order of gold."""
        if "tuple" in (gold.kind, answer.kind):
            return self._same_in_order(gold, answer)
        golds, answers = items(gold), items(answer)
        if len(golds) == 1 and answer.kind == "list" and self._states_last(answer):
            return self._same(gold, answer.args[-1])
        if len(golds) == 1 and gold.kind != "set" and answer.kind == "list" and answer.text == "or":
            return all(self._same(gold, each) for each in answers)  # 1/4, or 25%
        if len(golds) != len(answers):
            return False
        if "set" in (gold.kind, answer.kind) and len(golds) == 1:
            return self._same(golds[0], answers[0])
        related = any(node.kind == "relation" and node.text != "=" for node in (*golds, *answers))
        if related and gold.text != answer.text:
            return False
        if are_named_differently(golds):
            if "set" in (gold.kind, answer.kind) or answer.text == "or":
                return False
            if any(map(is_named, answers)) and names_of(golds) != names_of(answers):
                return False
        if are_named_differently(golds) or (
            are_named_differently(answers) and not are_of_one_name(answers)
        ):
            return matched(in_order(golds), in_order(answers), self._same)
        left = list(map(last_side, answers))
        for each in map(last_side, golds):
            place = next((n for n, one in enumerate(left) if self._same(each, one)), None)
            if place is None:
                return False
            del left[place]
        return True

    def _states_last(self, answer: Node) -> bool:
        """Whether the last of several equations alone is of what is asked for: x + 1 = 5, x = 4."""
        equations = all(part.kind == "relation" and part.text == "=" for part in answer.args)
        of_target = [
            spelling(part.args[0]) == self.question.answer_name
            or (part.args[0].kind == "call" and key(part.args[0]) in self.question.formulas)
            for part in answer.args
            if equations
        ]
        return equations and of_target[-1] and sum(of_target) == 1

    def _same_in_order(self, gold: Node, answer: Node) -> bool:
        """A tuple and a list without brackets: 1, 2 or x = 1, y = 2 for (1, 2)."""
        parts = [node.args if node.kind == "tuple" else items(node) for node in (gold, answer)]
        others = [node for node in (gold, answer) if node.kind != "tuple"]
        if answer.kind == "set" and are_named_differently(answer.args):
            others = []  # {a = 3, b = 1}
        if any(node.kind != "list" or node.text == "or" for node in others):
            return False
        if ("[]" in (gold.text, answer.text) and len(parts[0]) == 2) or any(
            any(map(is_named, each)) and not are_named_differently(each) for each in parts
        ):
            return False
        return matched(in_order(parts[0]), in_order(parts[1]), self._same)

    def _same_tuple(self, gold: Node, answer: Node) -> bool:
        if gold.kind != answer.kind or gold.text != answer.text:
            return False
        return matched(gold.args, answer.args, self._same)

    def _same_matrix(self, gold: Node, answer: Node) -> bool:
        gold_rows, answer_rows = rows(gold), rows(answer)
        if gold_rows is None or answer_rows is None or len(gold_rows) != len(answer_rows):
            return False
        return all(matched(*pair, self._same) for pair in zip(gold_rows, answer_rows, strict=True))

    def _same_ratio(self, gold: Node, answer: Node) -> bool:  # noqa: PLR0911 - a case for each kind
        if not self.values.units_agree(peeled(gold), peeled(answer)):
            return False
        gold, answer = peeled(gold).node, peeled(answer).node
        if gold.kind != "ratio" or answer.kind != "ratio":
            if "relation" in (gold.kind, answer.kind) or self.question.is_about("times"):
                return False
            if gold.kind != "ratio" and notation(gold) not in ("fraction", "integer"):
                return self.question.is_about("ratio") and equivalent(
                    gold, Node("div", answer.args)
                )
            quotients = [
                Node("div", node.args) if node.kind == "ratio" and len(node.args) == 2 else node
                for node in (gold, answer)
            ]
            return self.values.same(quotients[0], quotients[1])
        if len(gold.args) != len(answer.args):
            return False
        if (
            self.strict
            and not is_reduced(answer)
            and not matched(gold.args, answer.args, self.values.same)
        ):
            return False
        if not is_reduced(gold):  # a time: 3:30 is not 1:10
            return matched(gold.args, answer.args, self.values.same)
        return all(
            equivalent(Node("div", one), Node("div", other))
            for one, other in zip(pairwise(gold.args), pairwise(answer.args), strict=True)
        ) and all(not left_to_compute(part) - left_to_compute(gold) for part in answer.args)

    # ---- relations

    def _same_regions(
        self,
        gold: Node,
        answer: Node,
        gold_region: Sequence[Interval],
        answer_region: Sequence[Interval],
    ) -> bool:
        brackets = [node.text for node in (gold, answer) if node.kind == "tuple"]
        if brackets == ["()"] and self.question.is_about("points"):
            return False
        calls = [{part.text for part in node.walk()} & {"abs"} for node in (gold, answer)]
        if self.strict and calls[1] > calls[0]:  # |x| > 2
            return False
        related = any(part.kind == "relation" for part in (*gold.args, *answer.args))
        if "[]" in (gold.text, answer.text) and "list" in (gold.kind, answer.kind) and not related:
            return False
        if gold.kind == "relation" and answer.kind == "relation":
            names = [node.unknowns for node in (gold, answer)]
            if len(names[0]) == len(names[1]) == 1 and names[0] != names[1]:
                return False
        if len(gold_region) != len(answer_region):
            return False
        return all(
            one.closed == other.closed and matched(one.ends, other.ends, self.values.same)
            for one, other in zip(gold_region, answer_region, strict=True)
        )

    def _same_relation(self, gold: Node, answer: Node) -> bool:  # noqa: C901, PLR0911 - a case for each kind
        equations = [
            node.kind == "relation" and set(node.text.split()) <= {"=", "approx"}
            for node in (gold, answer)
        ]
        if not equations[0] and gold.kind == "relation":
            return self._same_congruence(gold, answer)
        if not equations[1]:
            if answer.kind == "relation":
                return False
            return names_value(gold, self.question) and self._same(gold.args[-1], answer)
        if not equations[0]:
            return ends_in(answer, gold, self.question, self._same)
        if is_solved(gold):
            if len(answer.args) > 2:
                return ends_in(answer, gold.args[-1], self.question, self._same)
            if not is_solved(answer):
                return self._is_of_a_curve(gold, answer) and self._same_equation(gold, answer)
            answer = of_variable(answer, gold)
            return names_one(gold.args[0], answer.args[0]) and self._same(
                gold.args[-1], answer.args[-1]
            )
        if len(answer.args) > 2 and answer.text == " ".join("=" * (len(answer.args) - 1)):
            answer = Node("relation", (answer.args[0], answer.args[-1]), "=")
        if len(gold.args) != 2 or len(answer.args) != 2:
            return False
        if self.question.is_about("form") and not self._same_sides(gold, answer):
            return False
        return self._same_equation(gold, answer)

    def _is_of_a_curve(self, gold: Node, answer: Node) -> bool:
        """Whether the equation of something may have any form: where the prompt asks for one, or
        where form does not count and the prompt does not have it."""
        if len(gold.unknowns) < 2:
            return False
        if self.question.is_about("equation"):
            return not self.question.is_about("form")
        return not self.strict and key(answer) not in self.question.formulas

    def _same_equation(self, gold: Node, answer: Node) -> bool:
        if len(gold.args) != 2 or len(answer.args) != 2:
            return False
        gold, answer = on_one_side(gold), on_one_side(answer)
        if self.strict:
            left = left_to_compute(answer) - left_to_compute(gold)
            any_form = self.question.is_about("equation") and not self.question.is_about("form")
            if set(left) - ({"term"} if any_form else set()):
                return False
            if not any_form and compounds(gold) != compounds(answer):
                return False
        return proportional(gold, answer)

    def _same_sides(self, gold: Node, answer: Node) -> bool:
        """Whether the unknowns stand on the same sides, where the prompt asks for a form."""
        sides = [
            [(side.unknowns, rational(side) == 0) for side in node.args] for node in (gold, answer)
        ]
        return sides[0] == sides[1]

    def _same_congruence(self, gold: Node, answer: Node) -> bool:
        if gold.kind != answer.kind or gold.text != answer.text:
            return False
        return matched(gold.args, answer.args, self.values.same)
