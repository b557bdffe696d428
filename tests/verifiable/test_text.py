"""Extracting answers from text, in linear time for any text."""

from __future__ import annotations

import pytest
from tests.effort import Effort

from groupwise_messages.completion import (
    content,
    outside_thinking,
    prompt_text,
    tagged,
)
from groupwise_messages.texts import encodable
from groupwise_verifiable.reading.numbers import last_number, whole_number
from groupwise_verifiable.text.accepted import folded, last_line


def test_content_of_text_and_messages() -> None:
    messages = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert content("plain") == "plain"
    assert content(messages) == "b"
    assert content([{"role": "assistant", "content": None}]) == ""


def test_a_tools_answer_is_not_the_policys() -> None:
    answer = {"role": "assistant", "content": "5"}
    assert content([answer, {"role": "tool", "content": "36"}]) == "5"
    assert content([{"content": "6"}]) == "6"  # a message without a role
    assert content([{"role": "tool", "content": "36"}]) == ""
    assert content([]) == ""


def test_content_other_than_text_is_refused() -> None:
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
        ("<think><answer>1</answer></think>", None),
        ("<think><answer>1</answer></think> <answer>2</answer>", "2"),
        ("<answer>1</answer><think><answer>2</answer></think>", "1"),
        ('<answer type="final">1</answer>', None),
        ("<ANSWER>1</ANSWER>", None),
        ("none", None),
    ],
)
def test_tagged(text: str, answer: str | None) -> None:
    assert tagged(text, "answer") == answer


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>a</think>b", "b"),
        ("begun in the prompt</think>b", "b"),
        ("<think>never closed", ""),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("a<think>b</think>c", "a\nc"),
        ("no thinking", "no thinking"),
    ],
)
def test_outside_thinking(text: str, rest: str) -> None:
    assert outside_thinking(text).strip() == rest


def test_a_prompt_is_text_or_messages() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image"}]}]
    assert prompt_text(messages) == "a"
    assert prompt_text("a") == "a"
    assert prompt_text(None) == ""


def test_encodable_replaces_lone_surrogates() -> None:
    assert encodable("a\ud800b") == "a\ufffdb"
    assert encodable("\ud83d\ude00") == encodable("\U0001f600") == "\U0001f600"


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
def test_200_kilobytes_of_any_text_take_less_than_a_second(unit: str) -> None:
    text = (unit * 200_000)[:200_000]
    for hostile in (text, text + "x", "1" + text):
        with Effort() as effort:
            tagged(hostile, "answer")
            outside_thinking(hostile)
            last_number(hostile)
            whole_number(hostile)
            last_line(hostile)
            folded(hostile)
        assert effort.cpu < 1
