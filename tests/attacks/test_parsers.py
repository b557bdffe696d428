"""Text rewards and parsers of completions, on arbitrary and hostile text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.effort import cpu_within

from groupwise_messages.completion import (
    content,
    outside_thinking,
    prompt_text,
    tagged,
)
from groupwise_messages.texts import encodable
from groupwise_verifiable.reading.numbers import last_number, whole_number
from groupwise_verifiable.text.accepted import folded, last_line
from groupwise_verifiable.text.answers import ExactAnswer, NumericAnswer
from groupwise_verifiable.text.format import TagCount, ThinkAnswerFormat, ThinkFormat
from groupwise_verifiable.text.language import LanguageConsistency
from groupwise_verifiable.text.overlong import SoftOverlong
from groupwise_verifiable.text.repetition import Repetition

sys.path.insert(0, str(Path(__file__).parent))
from scraps import FRAGMENTS, UNITS

Tries = Callable[[int], None]

ANYTHING = st.characters(exclude_categories=())
TEXTS = st.one_of(
    st.text(ANYTHING),
    st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join),
    st.lists(st.one_of(st.sampled_from(FRAGMENTS), ANYTHING), max_size=30).map("".join),
)
# Plain text, without signs that open or close something.
PLAIN = st.text(st.characters(exclude_characters="<>$`\\", exclude_categories=()))


def ids(completions: list[Any]) -> list[list[int]]:
    return [[ord(character) % 7 for character in content(completion)] for completion in completions]


def with_ids(reward: Any) -> Callable[[list[Any]], Any]:
    return lambda texts: reward(["p"] * len(texts), texts, completion_ids=ids(texts))


def numeric(**settings: Any) -> Callable[[list[Any]], Any]:
    reward = NumericAnswer(NumericAnswer.Config(**settings))
    return lambda texts: reward(["What is 2+3?"] * len(texts), texts, answer=[5] * len(texts))


def exact(**settings: Any) -> Callable[[list[Any]], Any]:
    reward = ExactAnswer(ExactAnswer.Config(**settings))
    return lambda texts: reward(["p"] * len(texts), texts, answer=["e\u0301"] * len(texts))


# Each reward as a function of texts, and a test of the values that its docs allow.
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
    "think_answer_format": (with_ids(ThinkAnswerFormat()), {0.0, 1.0}.__contains__),
    "think_format": (with_ids(ThinkFormat()), {0.0, 1.0}.__contains__),
    "tag_count": (with_ids(TagCount()), {0.0, 0.25, 0.5, 0.75, 1.0}.__contains__),
    "repetition words": (
        with_ids(Repetition(Repetition.Config(over="words"))),
        lambda value: -1.0 < value <= 0.0,
    ),
    "repetition tokens": (with_ids(Repetition()), lambda value: -1.0 < value <= 0.0),
    "soft_overlong": (
        with_ids(SoftOverlong(SoftOverlong.Config(max_length=30, cache=10))),
        lambda value: -1.0 <= value <= 0.0,
    ),
    "language_consistency en": (
        with_ids(LanguageConsistency()),
        lambda value: value is None or 0.0 <= value <= 1.0,
    ),
    "language_consistency zh": (
        with_ids(LanguageConsistency(LanguageConsistency.Config(language="zh"))),
        lambda value: value is None or 0.0 <= value <= 1.0,
    ),
}
PARSERS: dict[str, Callable[[str], Any]] = {
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
    "A text reward gives any text one value in its range, the same alone and in a batch",
    "random text and scraps of tags, numbers, scripts and surrogates",
)
@pytest.mark.parametrize("name", REWARDS)
def test_any_text_has_one_value_in_the_documented_range(name: str, tries: Tries) -> None:
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


@pytest.mark.attack(
    "Parts of a text that the docs call ignored change nothing", "random text with and without them"
)
def test_ignored_parts_of_a_text_change_nothing(tries: Tries) -> None:
    last, language = REWARDS["numeric_answer last_number"][0], LanguageConsistency()

    @given(PLAIN, PLAIN)
    def check(text: str, other: str) -> None:
        with_thinking = f"<think>{other}</think>\n{text}"
        assert last([with_thinking]) == last([text])
        assert last_line(outside_thinking(with_thinking)) == last_line(text)
        assert tagged(with_thinking + "<answer>a</answer>", "answer") == "a"
        spaced = "  " + text.replace(" ", " \t") + "\n"
        assert exact()([spaced]) == exact()([text])
        assert folded(spaced) == folded(text)
        with_markup = [text + " $x\u0439$ <tag> \\alpha ```\u0439```"]
        assert language(["p"], with_markup) == language(["p"], [text])
        tries(1)

    check()


@pytest.mark.attack(
    "An answer that a strict rule accepts is accepted by looser ones",
    "random text that the strict rule accepts",
)
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


@pytest.mark.attack("No text takes a parser a second", "99 fragments, each repeated to a long text")
@pytest.mark.parametrize("name", [*PARSERS, *(name for name in REWARDS if name[-2:] != "zh")])
def test_no_text_takes_a_parser_a_second(name: str, full: bool, tries: Tries) -> None:
    size = 300_000 if full else 30_000
    parse = (lambda text: REWARDS[name][0]([text])) if name in REWARDS else PARSERS[name]
    parse("a first sentence, which loads models and tables")
    for unit in UNITS:
        text = (unit * (size // len(unit) + 1))[:size]
        assert cpu_within(1.0 if full else 0.5, partial(parse, text)), repr(unit[:20])
        tries(1)
