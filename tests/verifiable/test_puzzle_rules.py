"""Rules that refuse wrong answers which reasoning-gym's verifiers accept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import reasoning_gym
from tests.effort import cpu_within

from groupwise_verifiable.puzzles import rules
from groupwise_verifiable.puzzles.check import Attempt, score
from groupwise_verifiable.puzzles.rules import admissible
from groupwise_verifiable.puzzles.source import ReasoningGym

Row = dict[str, Any]


def rows_of(task: str, count: int = 10) -> list[Row]:
    source = ReasoningGym(ReasoningGym.Config(task=task, size=count, seed=2))
    return [source[index] for index in range(count)]


def metadata(row: Row, **changes: object) -> Row:
    return {**row, "metadata": {**row["metadata"], **changes}}


def hidden(row: Row) -> str:
    """The target in base 16, plus 0 times the sum of the row's numbers."""
    numbers = "+".join(map(str, row["metadata"]["numbers"]))
    return f"{hex(row['metadata']['target'])}+0x0*({numbers})"


def shifted(row: Row) -> str:
    return str([float(number) + 0.5 for number in row["metadata"]["sorted_numbers"]])


def unordered(row: Row) -> str:
    return f"[{', '.join(['NaN'] * len(row['metadata']['sorted_numbers']))}]"


TRICKS: list[tuple[str, Callable[[Row], str]]] = [
    ("advanced_geometry", lambda row: f"{row['answer']}, 5"),
    ("coin_flip", lambda row: "0"),
    ("complex_arithmetic", lambda row: "nan"),
    ("complex_arithmetic", lambda row: "n a n"),
    ("complex_arithmetic", lambda row: "nani"),
    ("countdown", hidden),
    ("fraction_simplification", lambda row: f"{row['answer']} $\\frac{{1}}{{2}}$"),
    ("game_of_life_halting", lambda row: "banana"),
    ("game_of_life_halting", lambda row: "False True"),
    ("gsm_symbolic", lambda row: f"-{row['answer']}"),
    ("gsm_symbolic", lambda row: f"{row['answer']} or 7.5"),
    ("letter_jumble", lambda row: f"{row['answer']} and more"),
    ("number_sorting", shifted),
    ("number_sorting", unordered),
    ("polynomial_equations", lambda row: f"{row['answer']}, banana"),
    ("puzzle24", lambda row: "6*4*1*1"),
    ("quantum_lock", lambda row: f"{row['answer']} or so"),
    ("sokoban", lambda row: row["answer"] + "LRUD" * len(row["answer"])),
    ("time_intervals", lambda row: f"{row['answer']} 12 days"),
    ("word_sorting", lambda row: f"{row['answer']}, more"),
]


@pytest.mark.parametrize(("task", "trick"), TRICKS)
def test_wrong_answers_that_a_verifier_accepts_are_refused(
    task: str, trick: Callable[[Row], str]
) -> None:
    verify = reasoning_gym.get_score_answer_fn(task)
    rows = [row for row in rows_of(task) if verify(trick(row), row) == 1.0]
    assert rows  # if empty, reasoning-gym has fixed its verifier and the rule can be removed
    assert [score(Attempt(task, trick(row), row)) for row in rows] == [0.0] * len(rows)
    assert [score(Attempt(task, row["answer"], row)) for row in rows] == [1.0] * len(rows)


RARE = [  # a task, a wrong answer, and a row for which the verifier accepts it
    ("coin_flip", "0.00000", {"answer": "0.00001"}),
    ("decimal_arithmetic", "0", {"answer": "0.0009"}),
    ("figlet_font", "STRAWBERRIED", {"answer": "STRAWBERRIES"}),
    ("polynomial_equations", "banana", {"answer": ""}),
    (
        "polynomial_multiplication",
        "3*(x + 1)",
        {"answer": "3*x + 3", "metadata": {"polynomial_expr": "3*(x+1)"}},
    ),
    (
        "polynomial_multiplication",
        "2*x * 3*x",
        {"answer": "6*x**2", "metadata": {"polynomial_expr": "2*x*3*x"}},
    ),
    ("puzzle24", "7*7/2*1", {"answer": "", "metadata": {"numbers": [7, 7, 2, 1]}}),
    ("puzzle24", "2**3*3*1", {"answer": "", "metadata": {"numbers": [2, 3, 3, 1]}}),
]


@pytest.mark.parametrize(("task", "answer", "row"), RARE)
def test_wrong_answers_that_a_verifier_accepts_in_rare_rows_are_refused(
    task: str, answer: str, row: Row
) -> None:
    full_row = {"question": "", "metadata": {}, **row}
    assert reasoning_gym.get_score_answer_fn(task)(answer, full_row) == 1.0
    assert score(Attempt(task, answer, full_row)) == 0.0


def test_moves_that_only_go_back_and_forth_are_wrong() -> None:
    row = metadata(rows_of("rush_hour", 1)[0], board_config="ooooooooooooAAoooooooooooooooooooooo")
    row["metadata"]["min_moves"] = 1
    assert score(Attempt("rush_hour", "A+4", row)) == 1.0
    assert score(Attempt("rush_hour", "A+1 A+1 A+1 A+1", row)) == 1.0
    assert reasoning_gym.get_score_answer_fn("rush_hour")("A-1 A+1 " * 9 + "A+4", row) == 1.0
    assert score(Attempt("rush_hour", "A-1 A+1 " * 9 + "A+4", row)) == 0.0


def test_values_of_a_verifier_above_1_count_as_0() -> None:
    row = {"question": "", "answer": "-1", "metadata": {"task": "recurring_event_day"}}
    verify = reasoning_gym.get_score_answer_fn("calendar_arithmetic")
    assert verify("3", row) > 1e8
    assert score(Attempt("calendar_arithmetic", "3", row)) == 0.0
    assert score(Attempt("calendar_arithmetic", "-1", row)) == 1.0


def test_every_rule_has_an_answer_that_needs_it() -> None:
    shown = {task for task, *_ in [*TRICKS, *RARE]} | {"rush_hour"}
    assert shown == set(rules._RULES) | set(rules._FORMS)


RIGHT = [
    ("coin_flip", "15/128", {"answer": "0.1171875"}),
    ("coin_flip", "0.11719", {"answer": "0.1171875"}),
    ("complex_arithmetic", "(-3 - 11i)", {"metadata": {"result": (-3, -11)}}),
    ("countdown", "(39 - 60)*-22 + 99 - 14", {"metadata": {"numbers": [14, 22, 39, 99, 60]}}),
    ("game_of_life_halting", "true", {"answer": "True"}),
    ("gsm_symbolic", "27 apples", {"answer": "27"}),
    ("polynomial_equations", "", {"answer": ""}),
    ("polynomial_equations", '""', {"answer": ""}),
    ("time_intervals", "26", {"answer": "26 days", "metadata": {"task_type": "date"}}),
    ("chain_sum", "inf", {"answer": "inf"}),
    ("needle_haystack", "Nan", {"answer": "Nan"}),
]


@pytest.mark.parametrize(("task", "answer", "row"), RIGHT)
def test_right_answers_in_other_forms_stay_right(task: str, answer: str, row: Row) -> None:
    full_row = {"question": "", "answer": "none", "metadata": {}, **row}
    full_row["metadata"] = {"target": 547, **full_row["metadata"]}
    assert score(Attempt(task, answer, full_row)) == 1.0


NOT_FINITE = ["nan", "NaN", "-inf", "[1, Infinity]", "sNaN", "nanj", "1e999", "9.9E400", "9" * 400]


def test_nan_and_inf_are_wrong_unless_the_answer_contains_them() -> None:
    for text in NOT_FINITE:
        assert not admissible("number_sequence", text, {"answer": "5"})
        assert admissible("string_synthesis", text, {"answer": f"a {text} b"})
    for text in ("banana", "information", "1e10", "5.5.5", "nan_o", "e999", "infs"):
        assert admissible("number_sequence", text, {"answer": "5"})


LONG = [
    text * (50_000 // len(text))
    for text in ("9", "9.", "1e", "1 ", "nan", "1,", "(", "-", " ", "\n", "A → ", "$\\frac{ ", "9/")
]


@pytest.mark.slow
def test_rules_take_linear_time() -> None:
    row = {"question": "", "answer": "5", "metadata": {}}
    row["metadata"] = {"numbers": [1], "target": 1, "original_numbers": ["1"], "min_moves": 9}
    row["metadata"]["polynomial_expr"] = "x"
    for task in {*rules._RULES, *rules._FORMS}:
        for text in LONG:
            assert cpu_within(0.5, partial(admissible, task, text, row)), (task, text[:10])
