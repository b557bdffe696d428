"""Everything that reads what a model wrote, on text that nobody would write."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from groupwise_verifiable.completion import (
    content,
    outside_thinking,
    prompt_text,
    tagged,
)
from groupwise_verifiable.numbers import last_number, whole_number
from groupwise_verifiable.text.answers import ExactAnswer, NumericAnswer, folded, last_line
from groupwise_verifiable.text.format import TagCount, ThinkAnswerFormat, ThinkFormat
from groupwise_verifiable.text.language import LanguageConsistency
from groupwise_verifiable.text.overlong import SoftOverlong
from groupwise_verifiable.text.repetition import Repetition
from groupwise_verifiable.text.reward_model import encodable

sys.path.insert(0, str(Path(__file__).parent))
from scraps import FRAGMENTS, UNITS

Tries = Callable[[int], None]

ANYTHING = st.characters(exclude_categories=())
TEXTS = st.one_of(
    st.text(ANYTHING),
    st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join),
    st.lists(st.one_of(st.sampled_from(FRAGMENTS), ANYTHING), max_size=30).map("".join),
)
# Plain text, which neither opens nor closes anything.
PLAIN = st.text(st.characters(exclude_characters="<>$`\\", exclude_categories=()))


def ids(completions: list[Any]) -> list[list[int]]:
    return [[ord(character) % 7 for character in content(each)] for each in completions]


def over(reward: Any) -> Callable[[list[Any]], Any]:
    return lambda texts: reward(["p"] * len(texts), texts, completion_ids=ids(texts))


def numeric(**settings: Any) -> Callable[[list[Any]], Any]:
    reward = NumericAnswer(NumericAnswer.Config(**settings))
    return lambda texts: reward(["What is 2+3?"] * len(texts), texts, answer=[5] * len(texts))


def exact(**settings: Any) -> Callable[[list[Any]], Any]:
    reward = ExactAnswer(ExactAnswer.Config(**settings))
    return lambda texts: reward(["p"] * len(texts), texts, answer=["e\u0301"] * len(texts))


# What each gives for texts, and the values that its docs say there are.
REWARDS: dict[str, tuple[Callable[[list[Any]], Any], Callable[[float | None], bool]]] = {
    **{
        f"exact_answer {how}": (exact(extract=how), {0.0, 1.0}.__contains__)
        for how in ("whole", "tag", "last_line")
    },
    "exact_answer ignore_case": (exact(ignore_case=True), {0.0, 1.0}.__contains__),
    **{
        f"numeric_answer {how}": (numeric(extract=how, relative=0.1), {0.0, 1.0}.__contains__)
        for how in ("last_number", "whole", "tag")
    },
    "think_answer_format": (over(ThinkAnswerFormat()), {0.0, 1.0}.__contains__),
    "think_format": (over(ThinkFormat()), {0.0, 1.0}.__contains__),
    "tag_count": (over(TagCount()), {0.0, 0.25, 0.5, 0.75, 1.0}.__contains__),
    "repetition words": (
        over(Repetition(Repetition.Config(over="words"))),
        lambda value: -1.0 < value <= 0.0,
    ),
    "repetition tokens": (over(Repetition()), lambda value: -1.0 < value <= 0.0),
    "soft_overlong": (
        over(SoftOverlong(SoftOverlong.Config(max_length=30, cache=10))),
        lambda value: -1.0 <= value <= 0.0,
    ),
    "language_consistency en": (
        over(LanguageConsistency()),
        lambda value: value is None or 0.0 <= value <= 1.0,
    ),
    "language_consistency zh": (
        over(LanguageConsistency(LanguageConsistency.Config(language="zh"))),
        lambda value: value is None or 0.0 <= value <= 1.0,
    ),
}
READERS: dict[str, Callable[[str], Any]] = {
    "last_number": last_number,
    "whole_number": whole_number,
    "tagged": lambda text: tagged(text, "answer"),
    "outside_thinking": outside_thinking,
    "last_line": last_line,
    "folded": folded,
    "encodable": encodable,
    "prompt_text": lambda text: prompt_text([{"role": "user", "content": text}]),
    "content": lambda text: content([{"role": "assistant", "content": text}]),
}


@pytest.mark.attack(
    "Whatever is written, a text reward gives one value in its range, and to each alone the same",
    "random text and scraps of tags, numbers, scripts and surrogates",
)
@pytest.mark.parametrize("name", REWARDS)
def test_whatever_is_written_has_a_value(name: str, tries: Tries) -> None:
    score, allowed = REWARDS[name]

    @given(st.lists(TEXTS, min_size=1, max_size=4))
    def check(texts: list[str]) -> None:
        values = score(texts)
        assert len(values) == len(texts)
        assert all(map(allowed, values))
        assert [score([text])[0] for text in texts] == values
        messages = [[{"role": "assistant", "content": text}] for text in texts]
        assert score(messages) == values
        tries(1)

    check()


@pytest.mark.attack("What docs say is not read changes nothing", "random text with it and without")
def test_what_is_not_read_changes_nothing(tries: Tries) -> None:
    last, language = REWARDS["numeric_answer last_number"][0], LanguageConsistency()

    @given(PLAIN, PLAIN)
    def check(text: str, other: str) -> None:
        thought = f"<think>{other}</think>\n{text}"
        assert last([thought]) == last([text])
        assert last_line(outside_thinking(thought)) == last_line(text)
        assert tagged(thought + "<answer>a</answer>", "answer") == "a"
        spaced = "  " + text.replace(" ", " \t") + "\n"
        assert exact()([spaced]) == exact()([text])
        assert folded(spaced) == folded(text)
        marked = [text + " $x\u0439$ <tag> \\alpha ```\u0439```"]
        assert language(["p"], marked) == language(["p"], [text])
        tries(1)

    check()


@pytest.mark.attack("One rule agrees with the other", "random text that one of two judged right")
def test_stricter_rules_imply_looser_ones(tries: Tries) -> None:
    whole, tag, last = (
        REWARDS[f"numeric_answer {how}"][0] for how in ("whole", "tag", "last_number")
    )
    numbers = st.lists(st.sampled_from([*"0123456789+-/.,$ eE%^", "\u2212"]), max_size=8).map(
        "".join
    )

    @given(numbers)
    def check(number: str) -> None:
        if whole([number]) == [1.0]:
            assert last([number]) == [1.0]
        assert tag([f"<answer>{number}</answer>"]) == whole([number])
        form = f"<think>\na\n</think>\n<answer>\n{number}\n</answer>"
        if ThinkAnswerFormat().score(form):
            assert TagCount().score(form) == ThinkFormat().score(form) == 1.0
            assert tagged(form, "answer") == number.strip()
        tries(1)

    check()


@pytest.mark.attack(
    "No text keeps a reader busy for a second", "99 scraps, each over and over in a long text"
)
@pytest.mark.parametrize("name", [*READERS, *(name for name in REWARDS if name[-2:] != "zh")])
def test_no_text_takes_a_second(name: str, full: bool, tries: Tries) -> None:
    size = 300_000 if full else 30_000
    read = (lambda text: REWARDS[name][0]([text])) if name in REWARDS else READERS[name]
    read("a sentence that loads whatever there is to load")
    for unit in UNITS:
        text = (unit * (size // len(unit) + 1))[:size]
        started = time.process_time()
        read(text)
        assert time.process_time() - started < (1.0 if full else 0.5), repr(unit[:20])
        tries(1)
