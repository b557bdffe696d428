"""Copies: answers that repeat what the prompt says, such as the fraction that was to be reduced."""

from groupwise_verifiable.reading.form import notation, reducible
from groupwise_verifiable.reading.intervals import intervals
from groupwise_verifiable.reading.items import unlabelled
from groupwise_verifiable.reading.marks import peeled
from groupwise_verifiable.reading.node import Node, key
from groupwise_verifiable.reading.question import Question


def is_copy(gold: Node, answer: Node, question: Question) -> bool:  # noqa: PLR0911 - a case for each kind
    """Whether the answer stands in the prompt, in another notation than gold's."""
    gold, answer = peeled(unlabelled(gold)).node, peeled(unlabelled(answer)).node
    if answer.kind == "relation" and gold.kind != "relation":
        if answer.text != "in" and intervals(answer) in question.regions:
            return True
        rounds = notation(gold) == "decimal" and "approx" in answer.text
        if set(answer.text.split()) == {"="} or rounds:
            answer = peeled(answer.args[-1]).node
    if gold.kind == "relation" and gold.text not in ("=", "in"):
        is_region = answer.kind == "tuple" or answer.text == "in"
        if is_region and intervals(answer) in question.regions:
            return True
    if answer.kind == "builder" and intervals(answer) in question.regions:
        return gold.kind != "builder"
    if answer.kind in ("name", "text") or key(answer) == key(gold):
        return False
    if answer.kind == gold.kind == "number" and notation(gold) == notation(answer):
        return False
    if key(answer) in question.keys:
        return True
    simplest = question.asks_for("simplest")
    unreduced = set(reducible(answer)) - set(reducible(gold))
    return bool(unreduced & question.unreduced) or bool(simplest and unreduced)
