"""Answers to each task of reasoning-gym that must earn nothing, or must not stop a run."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from groupwise_verifiable import workers
from groupwise_verifiable.puzzles.check import Attempt, on_gold
from groupwise_verifiable.puzzles.reward import ReasoningGymScore
from groupwise_verifiable.puzzles.rules import REFUSED
from groupwise_verifiable.puzzles.source import ReasoningGym
from groupwise_verifiable.puzzles.tasks import task_names
from groupwise_verifiable.reading.numbers import whole_number

# reasoning-gym reads files that it leaves open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Row = dict[str, Any]

TASKS = [task for task in task_names() if task != "composite" and task not in REFUSED]
# Tasks with several right answers; one after the other may be right, too.
MANY_RIGHT = {
    *("boxnet", "graph_color", "intermediate_integration", "jugs", "knight_swap", "quantum_lock"),
    *("rubiks_cube", "rush_hour", "simple_integration", "sokoban"),
}
WITHOUT_GOLD = {"boxnet", "rush_hour"}

EMPTY = [
    *("", "None", "0", "1", "-1", "2", "True", "False", "yes", "no", "nan", "n a n", "nani", "inf"),
    *("1e999", "[]", "{}", '""', "[NaN, NaN, NaN, NaN]", "banana", "a", "A B C", "?", "infeasible"),
    *("1 2 3 4 5 6 7 8 9 10", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10", "True False", "Yes No", "24"),
    *("(" * 10_000, "9" * 10_000),
]
MORE = [
    *(" ", "null", "0.0", "true", "NaN", "sNaN", "-inf", "Infinity", "-1e999", "oo", "()", "[[]]"),
    *(
        "[NaN]",
        "[0]",
        '{"a": NaN}',
        "A",
        "abc",
        ".",
        "\\boxed{}",
        "<answer>",
        "C",
        "x",
        "0*x",
        "0x18",
    ),
    *("on off undetermined", "1/1000000", "0.", "LRUD" * 50, "[" * 10_000 + "]" * 10_000),
    '{"a":' * 5_000 + "1" + "}" * 5_000,
]

# Answers that a verifier would check forever, or with more memory than there is.
COSTLY = {
    "polynomial_multiplication": "9**9**9",
    "rush_hour": "A+999999999",
    "simple_integration": "x**9**9**9",
    "intermediate_integration": "9999999!*x",
    "countdown": "9**9**9**9",
    "puzzle24": "9**9**9*24",
    "codeio": str({str(number): number for number in range(3_000)}).replace("'", '"'),
    "rubiks_cube": "U " * 500_000,
}
LONG = {
    name: text * (1_000_000 // len(text))
    for name, text in {
        "brackets": "(",
        "signs": "-",
        "lines": "1\n",
        "items": "1,",
        "sum": "1+",
        "factors": "2 \N{MULTIPLICATION SIGN} ",
    }.items()
} | {"list": f"[{'1,' * 500_000}1]", "power": "9**9**9**9"}


@pytest.fixture(scope="module")
def rows(full: bool) -> dict[str, list[Row]]:
    """Some rows of every task."""
    return {task: rows_of(task, 10 if full else 2) for task in TASKS}


def rows_of(task: str, count: int) -> list[Row]:
    source = ReasoningGym(ReasoningGym.Config(task=task, size=count, seed=1))
    return [source[index] for index in range(count)]


def gold_of(row: Row) -> str:
    """The gold answer of the row, an example of a right answer, or an empty text."""
    return on_gold(Attempt("", None, row)).answer or ""


def is_right(answer: str, gold: str) -> bool:
    """Whether the answer equals the gold answer as text or as a number."""
    number, gold_number = whole_number(answer), whole_number(gold)
    return bool(gold) and (
        answer.strip("\"' ").casefold() == gold.strip().casefold()
        or (number is not None and gold_number is not None and number.value == gold_number.value)
    )


def rewards(cases: list[tuple[Row, str]], **settings: object) -> tuple[list[Any], float]:
    """The values of answers to rows, and the share of answers that could not be checked."""
    metrics: dict[str, float] = {}
    reward = ReasoningGymScore(ReasoningGymScore.Config.model_validate(settings))
    columns = {key: [row[key] for row, _ in cases] for key in ("question", "answer", "metadata")}
    texts = [f"<answer>{answer}</answer>" for _, answer in cases]
    values = reward(texts, texts, log_metric=metrics.__setitem__, **columns)
    return values, metrics["unchecked"]


def rewarded(cases: list[tuple[Row, str]], **settings: object) -> list[tuple[str, str, str, float]]:
    """Task, answer, gold answer and value of all cases with a value other than 0."""
    values, _ = rewards(cases, **settings)
    return [
        (row["metadata"]["source_dataset"], answer[:50], gold_of(row)[:50], value)
        for (row, answer), value in zip(cases, values, strict=True)
        if value
    ]


@pytest.mark.attack(
    "An answer without content earns nothing from reasoning-gym",
    f"{len(EMPTY)} to {len(EMPTY + MORE)} of them, and the question, to rows of every task",
)
@pytest.mark.timeout(600)
def test_answers_without_content_earn_nothing(
    rows: dict[str, list[Row]], full: bool, tries: Callable[[int], None]
) -> None:
    cases = []
    for row in (
        row for task_rows in rows.values() for row in (task_rows if full else task_rows[:1])
    ):
        question = row["question"].strip()
        answers = [*EMPTY, *(MORE if full else ()), question, *question.splitlines()[-3:]]
        cases += [(row, answer) for answer in answers if not is_right(answer, gold_of(row))]
    assert len(cases) > 30 * len(TASKS)
    assert rewarded(cases) == []
    tries(len(cases))


@pytest.mark.attack(
    "The answer to another question, or several answers, earn nothing from reasoning-gym",
    "four for rows of every task with one right answer",
)
def test_answers_to_other_questions_and_several_answers_earn_nothing(
    rows: dict[str, list[Row]], tries: Callable[[int], None]
) -> None:
    cases = [case for task in TASKS for case in wrong_answers(task, rows[task])]
    assert len(cases) > 4 * len(TASKS)
    assert rewarded(cases) == []
    tries(len(cases))


def wrong_answers(task: str, rows: list[Row]) -> Iterator[tuple[Row, str]]:
    if task in MANY_RIGHT:
        return
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        gold, other_gold = gold_of(row), gold_of(other)
        if not is_right(other_gold, gold):
            joined = (f"{gold} {other_gold}", f"{gold}, {other_gold}", f"{other_gold}\n{gold}")
            yield from ((row, answer) for answer in (other_gold, *joined))


@pytest.mark.attack(
    "A right answer earns 1 from reasoning-gym", "the gold answer of rows of every task"
)
def test_gold_answers_earn_1(rows: dict[str, list[Row]], tries: Callable[[int], None]) -> None:
    rows_with_gold = [row for task in TASKS if task not in WITHOUT_GOLD for row in rows[task]]
    cases = [(row, gold_of(row)) for row in rows_with_gold if "Integral" not in gold_of(row)]
    assert len(cases) > 0.99 * len(rows_with_gold)
    assert rewards(cases) == ([1.0] * len(cases), 0.0)
    tries(len(cases))


@pytest.mark.attack(
    "No answer to reasoning-gym delays a run beyond the deadline, or stops it",
    "answers of a million characters to a row of every task",
)
@pytest.mark.timeout(900)
def test_long_answers_are_refused_within_the_deadline(
    rows: dict[str, list[Row]], full: bool, tries: Callable[[int], None]
) -> None:
    for name in LONG if full else ("brackets", "lines"):
        text = LONG[name] if full else LONG[name][:20_000]
        cases = [(task_rows[0], text) for task_rows in rows.values()]
        assert rewarded(cases, timeout=3.0 if full else 10.0) == [], name
        tries(len(cases))


def start_of_a_worker() -> float:
    """Seconds to start a worker; more if the machine is busy."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import groupwise_verifiable.puzzles.check"], check=True)
    return time.monotonic() - started


@pytest.mark.attack(
    "No answer to reasoning-gym delays a run beyond the deadline, or stops it",
    "costly answers to many rows at once, among right ones",
)
@pytest.mark.timeout(600)
def test_costly_answers_delay_no_others_beyond_the_deadline(
    full: bool, tries: Callable[[int], None]
) -> None:
    tasks = [*COSTLY] * 8 if full else [*COSTLY][:2]
    timeout = 2.0 if full else 1.0
    sums = rows_of("chain_sum", 20)
    right = [(row, row["answer"]) for row in sums]
    costly = [(rows_of(task, 1)[0], COSTLY[task]) for task in tasks]
    rewards(right)  # starts the workers
    start = start_of_a_worker()
    started = time.monotonic()
    values, unchecked = rewards([*right[:10], *costly, *right[10:]], timeout=timeout)
    rounds = math.ceil(len(costly) / workers._worker_count())
    # On a busy machine an answer ends at the last resort of wall time, and is tried once more.
    longest = 2 * (workers._LAST_RESORT * timeout + 2 * start)
    assert time.monotonic() - started < rounds * longest + 10
    assert values == [1.0] * 10 + [0.0] * len(costly) + [1.0] * 10
    assert 0 < unchecked <= len(costly) / len(values)
    assert rewards(right) == ([1.0] * len(right), 0.0)
    processes = [
        process
        for process in psutil.Process().children(recursive=True)
        if any("spawn_main" in word for word in process.cmdline())
    ]
    assert 0 < len(processes) <= workers._worker_count()
    for process in processes:
        limit, _ = resource.prlimit(process.pid, resource.RLIMIT_AS)
        assert limit == workers.MEMORY_LIMIT
    tries(len(costly))
