"""Ten rewards in the manner of those that people publish, each with rows, for the audit.

They are written here from descriptions, without anybody's code; each docstring says what it does.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

Rows = list[dict[str, Any]]

SUMS: Rows = [
    {"prompt": f"What is {a} + {b}?", "answer": str(a + b)}
    for a, b in [(3, 4), (20, 7), (8, 9), (35, 36), (100, 7), (64, 53), (1, 1), (250, 21)]
]
WORKED: Rows = [
    {**row, "answer": f"{row['prompt'][8:-1]} = {row['answer']}\n#### {row['answer']}"}
    for row in SUMS
]
NUMBERS: Rows = [{**row, "target": int(row["answer"])} for row in SUMS]
CHOICES: Rows = [
    {"prompt": f"Which is {name}?\nA. 2\nB. 3\nC. 4\nD. 5", "answer": letter}
    for name, letter in [("two", "A"), ("three", "B"), ("four", "C"), ("five", "D")] * 2
]
DATES: Rows = [
    {"prompt": f"When was part {n} made?", "answer": f"{day} {month} 19{n}7"}
    for n, (day, month) in enumerate(
        [(3, "May"), (14, "June"), (9, "August"), (30, "March"), (2, "January"), (11, "April")]
    )
]
CALLS: Rows = [
    {"prompt": f"Book {seats} seats to {city}.", "answer": {"city": city, "seats": seats}}
    for seats, city in [(2, "Rome"), (1, "Oslo"), (4, "Lima"), (3, "Bern"), (2, "Kyiv")]
]
PROGRAMS: Rows = [
    {
        "prompt": f"Read a number and print it, and then {factor} times it, on two lines.",
        "tests": [("2\n", f"2\n{2 * factor}\n"), ("5\n", f"5\n{5 * factor}\n")],
        "solution": f"n = int(input())\nfor k in (1, {factor}):\n    print(k * n)",
    }
    for factor in (3, 7, 10)
]
FUNCTIONS: Rows = [
    {
        "prompt": f"Write a function times(n) that returns {factor} n.",
        "test": f"assert times(2) == {2 * factor}\nassert times(5) == {5 * factor}\n",
        "solution": f"def times(n):\n    return {factor} * n",
    }
    for factor in (3, 7, 10)
]


def contains(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Whether gold is somewhere in the completion."""
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


def last_number(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Whether the last number is gold."""
    numbers = [re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", "")) for text in completions]
    pairs = zip(numbers, answer, strict=True)
    return [float(bool(each) and float(each[-1]) == float(gold)) for each, gold in pairs]


def after_hashes(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Whether the number after `####` is that of the worked solution, as for GSM8K."""

    def number(text: str) -> str | None:
        match = re.search(r"#### (-?[\d.,]+)", text)
        return match[1].replace(",", "") if match else None

    return [float(number(t) == number(g)) for t, g in zip(completions, answer, strict=True)]


def same_text(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Whether the text in the answer tags, stripped, is gold."""
    found = [re.search(r"<answer>(.*?)</answer>", text, re.DOTALL) for text in completions]
    pairs = zip(found, answer, strict=True)
    return [float(match is not None and match[1].strip() == gold) for match, gold in pairs]


def letter_in_text(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Multiple choice: whether gold's letter stands as a word in the completion."""
    pairs = zip(completions, answer, strict=True)
    return [float(re.search(rf"\b{gold}\b", text) is not None) for text, gold in pairs]


def similar(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Whether the completion is similar to gold by edits, at least 0.8."""
    pairs = zip(completions, answer, strict=True)
    return [float(SequenceMatcher(None, text, gold).ratio() >= 0.8) for text, gold in pairs]


def evaluated(completions: Sequence[str], target: Sequence[int], **_: Any) -> list[float]:
    """Whether the expression in the answer tags evaluates to gold, by `eval`."""
    values = []
    for text, gold in zip(completions, target, strict=True):
        match = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
        try:
            values.append(float(match is not None and eval(match[1]) == gold))
        except Exception:
            values.append(0.0)
    return values


def agrees(completions: Sequence[str], answer: Sequence[Any], **_: Any) -> list[float]:
    """Whether the completion is a JSON object all of whose entries are gold's."""
    values = []
    for text, gold in zip(completions, answer, strict=True):
        try:
            entries = json.loads(text).items()
        except (ValueError, AttributeError):
            values.append(0.0)
            continue
        values.append(float(all(gold.get(name) == value for name, value in entries)))
    return values


def lines_agree(completions: Sequence[str], tests: Sequence[Any], **_: Any) -> list[float]:
    """Whether what a program prints equals what is expected, line by line, by `zip`."""

    def passes(program: str, stdin: str, expected: str) -> bool:
        ended = _ended(program, stdin)
        lines = zip(ended.stdout.strip().split("\n"), expected.strip().split("\n"), strict=False)
        return ended.returncode == 0 and all(a.strip() == b.strip() for a, b in lines)

    pairs = zip(completions, tests, strict=True)
    return [float(all(passes(_code(t), *case) for case in cases)) for t, cases in pairs]


def exits_with_0(completions: Sequence[str], test: Sequence[str], **_: Any) -> list[float]:
    """Whether a program, and assertions below it, end with exit code 0."""
    pairs = zip(completions, test, strict=True)
    return [float(_ended(f"{_code(t)}\n{tests}", "").returncode == 0) for t, tests in pairs]


def _code(text: str) -> str:
    match = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    return match[1] if match else "raise SystemExit(1)"


def _ended(program: str, stdin: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", "-S", "-c", program]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=10, check=False
    )


PUBLISHED: dict[Any, Rows] = {
    contains: SUMS,
    last_number: SUMS,
    after_hashes: WORKED,
    same_text: SUMS,
    letter_in_text: CHOICES,
    similar: DATES,
    agrees: CALLS,
    evaluated: NUMBERS,
    lines_agree: PROGRAMS,
    exits_with_0: FUNCTIONS,
}
