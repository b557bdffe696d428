"""`language_consistency`: the share of letters in the target language."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import Effort

from groupwise_verifiable.text.language import LanguageConsistency

ENGLISH = "First we add the two numbers, and then we divide their sum by three."
GERMAN = "Zuerst addieren wir die beiden Zahlen, und dann teilen wir durch drei."
CHINESE = "首先我们把两个数字加起来，然后把它们的总和除以三，最后得到答案。"  # noqa: RUF001 - Chinese comma
JAPANESE = "まず二つの数を足してから、その合計を三で割ります。"
RUSSIAN = "Сначала сложим два числа, а затем разделим сумму на три."  # noqa: RUF001 - Cyrillic


def share(text: str, language: str) -> float | None:
    return LanguageConsistency(LanguageConsistency.Config(language=language))(["p"], [text])[0]


@pytest.mark.parametrize(
    ("language", "text"),
    [("en", ENGLISH), ("de", GERMAN), ("zh", CHINESE), ("ja", JAPANESE), ("ru", RUSSIAN)],
)
def test_a_text_in_one_language(language: str, text: str) -> None:
    assert share(text, language) == 1.0
    others = {"en", "de", "zh", "ja", "ru"} - {language}
    assert [share(text, other) for other in sorted(others)] == [0.0] * 4


def test_mixed_sentences_and_mixed_words() -> None:
    letters = [sum(character.isalpha() for character in text) for text in (ENGLISH, GERMAN)]
    assert share(ENGLISH + "\n" + GERMAN, "en") == letters[0] / sum(letters)
    # Four Chinese letters inside an English sentence: too few to detect, but the script decides.
    mixed = share(ENGLISH.replace("numbers", "numbers 这个数字"), "en")
    assert mixed == letters[0] / (letters[0] + 4)


def test_mathematics_code_and_tags_do_not_count() -> None:
    assert share(ENGLISH + " $\\text{и}$ ```print('да')``` \\alpha <think>", "en") == 1.0
    assert share("1 + 1 = 2", "en") is None
    assert share("", "en") is None


def test_the_target_can_be_a_column() -> None:
    reward = LanguageConsistency(LanguageConsistency.Config(column="language"))
    assert reward(["p"] * 2, [GERMAN] * 2, language=["de", "en"]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="needs the column 'language'"):
        reward(["p"], [GERMAN])
    with pytest.raises(ValueError, match="unknown language 'xx'"):
        reward(["p"], [GERMAN], language=["xx"])


def test_equal_texts_get_equal_values_for_any_random_state() -> None:
    text = "Die answer ist in the Buch, weil the Autor es wrote. " * 3
    values = set()
    for seed in range(5):
        random.seed(seed)
        values.add(share(text, "de"))
    assert len(values) == 1


def test_of_a_long_text_only_a_sample_is_detected() -> None:
    rng = random.Random(0)
    words = ENGLISH.lower().strip(".").replace(",", "").split()
    sentences = [" ".join(rng.choices(words, k=9)) for _ in range(10_000)]
    with Effort() as effort:
        english = share(". ".join(sentences), "en")
        mixed = share(". ".join([*sentences, *([GERMAN] * 10_000)]), "en")
    letters = [sum(map(str.isalpha, text)) for text in (". ".join(sentences), GERMAN * 10_000)]
    assert effort.cpu < 3  # 20 s each without
    assert english is not None
    assert english > 0.9
    assert mixed == pytest.approx(english * letters[0] / sum(letters), abs=0.1)


def test_a_sentence_of_many_scripts_takes_linear_time() -> None:
    text = "".join(chr(code) + " " for code in range(0x20, 0x3000)) * 30
    share("load", "en")
    with Effort() as effort:
        share(text, "en")
    assert effort.cpu < 1


SHORT = st.lists(st.sampled_from(["12 plus 3 is 15", "12加上3等于15", "15", "плюс", "$x$"]))


@given(SHORT, SHORT)
def test_lines_are_weighted_by_their_letters(first: list[str], second: list[str]) -> None:
    texts = ["\n".join(lines) for lines in (first, second, first + second)]
    letters = [sum(map(str.isalpha, text.replace("$x$", ""))) for text in texts]
    shares = [share(text, "en") for text in texts]
    assert [value is None for value in shares] == [count == 0 for count in letters]
    known = [value or 0.0 for value in shares]
    assert all(0 <= value <= 1 for value in known)
    counts = [value * count for value, count in zip(known, letters, strict=True)]
    assert counts[0] + counts[1] == pytest.approx(counts[2])


@given(st.sampled_from(["en", "zh", "ru", "el"]), SHORT, st.integers())
def test_numbers_and_tags_do_not_change_the_share(
    language: str, lines: list[str], number: int
) -> None:
    text = "\n".join(lines)
    with_tags = f"<think>\n{number}\n{text}\n</think>\n<answer>\n{number}\n</answer>"
    assert share(with_tags, language) == share(text, language)


@given(
    st.text(alphabet="abcdefgh12 ,", max_size=15), st.text(alphabet="加減得你好 。", max_size=15)
)
def test_the_script_decides_for_short_lines(latin: str, chinese: str) -> None:
    counts = [sum(map(str.isalpha, text)) for text in (latin, chinese)]
    expected = None if not sum(counts) else counts[0] / sum(counts)
    assert share(f"{latin}\n{chinese}", "en") == (
        expected if expected is None else pytest.approx(expected)
    )
