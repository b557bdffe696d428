"""Checks whether a completion's mathematical answer is the gold one.

Answers are read and compared in linear time, and every number is bounded, so they need no worker
processes, whatever the policy writes.
"""

from groupwise_verifiable.mathematics.attempt import Attempt
from groupwise_verifiable.reading.answers import gold_answer, stated_answer
from groupwise_verifiable.reading.question import read_question
from groupwise_verifiable.reading.verification import is_mathematics, same_answer, same_boxes

_LONGEST = 1_000  # most characters of an answer, or twice those of the gold answer


def equivalent(attempt: Attempt) -> float | None:
    """Returns 1.0 if the text's answer equals gold, else 0.0; None if gold is no mathematics."""
    gold = gold_answer(attempt.gold)
    if not is_mathematics(gold):
        return None
    answer, boxes = stated_answer(attempt.text)
    if not answer or len(answer) > max(_LONGEST, 2 * len(gold)):
        return 0.0
    strict = attempt.rules == "strict"
    try:
        question = read_question(attempt.prompt)
        return float(
            same_answer(gold, answer, question, strict=strict)
            or same_boxes(gold, boxes, question, strict=strict)
        )
    except RecursionError:  # brackets in brackets
        return 0.0
