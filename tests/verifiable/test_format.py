"""`think_answer_format`, `think_format` and `tag_count`."""

from __future__ import annotations

import pytest
from tests.effort import Effort

from groupwise_verifiable.text.format import TagCount, ThinkAnswerFormat, ThinkFormat

GOOD = "<think>\nreasons\n</think>\n<answer>\n42\n</answer>"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (GOOD, 1.0),
        ("<think>\n\n</think>\n<answer>\n\n</answer>", 0.0),  # 1.0 by open-r1's expression
        ("<think>\na\n</think>\n<answer>\n \n</answer>", 0.0),
        ("<think>\n\t\n</think>\n<answer>\nb\n</answer>", 0.0),
        (GOOD + "\n" + GOOD, 0.0),  # 1.0 by open-r1's expression
        (GOOD.replace("reasons", "<think>\nreasons"), 0.0),
        (GOOD.replace("reasons", "the tag <answer> is for the answer"), 1.0),
        (GOOD + "\njunk on a later line", 0.0),  # 1.0 by open-r1's expression
        (GOOD + "\n", 0.0),
        (GOOD + " junk", 0.0),
        ("junk" + GOOD, 0.0),
        (GOOD.replace("\n</think>", "</think>"), 0.0),
        ("<think>\n</think>\n<answer>\n\n</answer>", 0.0),  # without a line between the tags
        ("<think>\na\n</think>\n<answer>\n</answer>", 0.0),
        (GOOD.replace("<answer>", ""), 0.0),
        ("", 0.0),
    ],
)
def test_think_answer_format(text: str, value: float) -> None:
    assert ThinkAnswerFormat()(["p"], [text]) == [value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>a</think>b", 1.0),
        ("<think></think>b", 1.0),
        ("<think></think>", 0.0),  # 1.0 by TRL
        ("<think>a</think> \n", 0.0),  # 1.0 by TRL
        ("<think>a<think>b</think>", 0.0),
        ("<think>a", 0.0),
        (" <think>a</think>", 0.0),
        ("</think><think>", 0.0),
        ("<think>a</think>b</think>c", 0.0),  # 1.0 by TRL
    ],
)
def test_think_format(text: str, value: float) -> None:
    assert ThinkFormat()(["p"], [[{"role": "assistant", "content": text}]]) == [value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (GOOD, 1.0),
        (GOOD + GOOD, 0.0),
        ("<think>\nreasons\n</think>\n42", 0.5),
        ("\n<answer>\n42", 0.25),
        ("\n<answer>\n42\n</answer>\n</answer>", 0.25),
        ("", 0.0),
    ],
)
def test_tag_count(text: str, value: float) -> None:
    assert TagCount()(["p"], [text], answer=["ignored"]) == [value]


def test_formats_are_checked_in_linear_time() -> None:
    text = "<think>\n" + "\n</think>\n<answer>\n" * 10_000
    with Effort() as effort:
        for reward in (ThinkAnswerFormat(), ThinkFormat(), TagCount()):
            reward(["p"] * 2, [text, text + "\n</answer>"])
    assert effort.cpu < 1
