"""Answers that must earn nothing from reasoning-gym's tasks, each of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from groupwise_verifiable.puzzle_rules import REFUSED
from groupwise_verifiable.puzzles import ReasoningGym, task_names
from groupwise_verifiable.reasoning import ReasoningGymScore
from groupwise_verifiable.text import whole_number

TASKS = [task for task in task_names() if task != "composite" and task not in REFUSED]

EMPTY = [
    *("", " ", "None", "null", "0", "1", "-1", "2", "0.0", "True", "False", "true", "yes", "no"),
    *("nan", "NaN", "n a n", "nani", "sNaN", "inf", "-inf", "Infinity", "1e999", "-1e999", "oo"),
    *("[]", "{}", "()", "[[]]", '""', "[NaN]", "[NaN, NaN, NaN, NaN]", "[0]", '{"a": NaN}'),
    *("banana", "a", "A", "abc", "A B C", "?", ".", "\\boxed{}", "<answer>", "C", "x", "0*x"),
    *("1 2 3 4 5 6 7 8 9 10", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10", "True False", "Yes No"),
    *("on off undetermined", "infeasible", "6*4*1*1", "0x18", "1/1000000", "0.", "LRUD" * 50),
    "(" * 10_000,
    "[" * 10_000 + "]" * 10_000,
    "9" * 10_000,
]


def rows_of(task: str, count: int, seed: int) -> list[dict[str, Any]]:
    source = ReasoningGym(ReasoningGym.Config(task=task, size=count, seed=seed))
    return [source[index] for index in range(count)]


def gold_of(row: dict[str, Any]) -> str | None:
    """The row's answer, or its example of one, as the answer tags would hold it."""
    from groupwise_verifiable.puzzle_check import Attempt, on_gold

    return on_gold(Attempt("", None, row)).answer or None


def is_right(answer: str, gold: str | None) -> bool:
    """Whether the answer is the gold one in other clothes."""
    if gold is None:
        return False
    value = whole_number(answer)
    return answer.strip("\"' ").casefold() == gold.strip().casefold() or (
        value is not None and value == whole_number(gold)
    )


def wrong_answers(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every row with each answer that must not earn anything for it."""
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        gold, theirs = gold_of(row), gold_of(other)
        question = row["question"]
        answers = [*EMPTY, question, *question.strip().splitlines()[-3:]]
        if gold and theirs and not is_right(gold, theirs):
            answers += [theirs, f"{gold} {theirs}", f"{gold}, {theirs}", f"{theirs}\n{gold}"]
        for answer in answers:
            if not is_right(answer, gold):
                yield row, answer


def rewards(cases: list[tuple[dict[str, Any], str]], **settings: object) -> list[float]:
    reward = ReasoningGymScore(ReasoningGymScore.Config.model_validate(settings))
    columns = {key: [row[key] for row, _ in cases] for key in ("question", "answer", "metadata")}
    texts = [f"<answer>{answer}</answer>" for _, answer in cases]
    return reward([row["prompt"] for row, _ in cases], texts, **columns)
