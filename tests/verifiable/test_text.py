"""Reading answers out of text, quickly whatever the text."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from groupwise_verifiable.text import (
    content,
    folded,
    last_line,
    last_number,
    tagged,
    whole_number,
)


def test_content_of_text_and_messages() -> None:
    messages = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert content("plain") == "plain"
    assert content(messages) == "b"
    assert content([{"role": "assistant", "content": None}]) == ""
    assert content([]) == ""


def test_content_refuses_what_is_no_text() -> None:
    with pytest.raises(ValueError, match="must be text, got list"):
        content([{"role": "assistant", "content": [{"type": "image"}]}])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 1 </answer> or <answer>\n2\n</answer>.", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("<answer>a<answer>b</answer>", "a<answer>b"),
        ("</answer>1<answer>", None),
        ("<answer></answer>", ""),
        ("none", None),
    ],
)
def test_tagged(text: str, answer: str | None) -> None:
    assert tagged(text, "answer") == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 + 30 = 42.", 42),
        ("costs $1,234,567.50 a year", Fraction("1234567.5")),
        ("5-3", 3),
        ("x = -3", -3),
        ("x = \u22123", -3),
        ("(2)-7", 7),
        ("about .5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("-3 / 4 of it", Fraction(-3, 4)),
        ("1e3", 1000),
        ("1,2345", 2345),
        ("1,111,1111", 1111),
        ("1/0", None),
        ("none", None),
        ("9" * 5000, None),
    ],
)
def test_last_number(text: str, number: Fraction | int | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [(" $42. ", 42), ("1,000", 1000), ("42 apples", None), ("4 2", None), ("", None), ("-1", -1)],
)
def test_whole_number(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_an_exponent_cannot_fill_the_memory() -> None:
    assert last_number("1e999999999") == 999999999
    assert whole_number("1e999999999") is None


def test_lines_and_white_space() -> None:
    assert last_line("a\n b \n\n") == "b"
    assert last_line(" \n") == ""
    assert folded(" a \n\t b ") == "a b"


@pytest.mark.parametrize(
    "unit",
    [
        "<answer>",
        "</answer>",
        "<answer></answer>",
        "1",
        "1,",
        "111,",
        "1/",
        "-",
        ".1",
        "1e",
        "1 ",
        "\n",
    ],
)
def test_200_kilobytes_of_anything_take_less_than_a_second(unit: str) -> None:
    text = (unit * 200_000)[:200_000]
    for hostile in (text, text + "x", "1" + text):
        started = time.process_time()
        tagged(hostile, "answer")
        last_number(hostile)
        whole_number(hostile)
        last_line(hostile)
        folded(hostile)
        assert time.process_time() - started < 1
