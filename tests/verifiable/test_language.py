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


@pytest.mark.slow
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


@pytest.mark.parametrize("mark", [". ", " ", "\n"])
def test_short_lines_and_long_sentences_are_sampled_too(mark: str) -> None:
    rng = random.Random(0)
    words = ENGLISH.lower().strip(".").replace(",", "").split()
    lines = [" ".join(rng.choices(words, k=3)) + f" {number}" for number in range(20_000)]
    share("load", "en")
    with Effort() as effort:
        value = share(mark.join(lines), "en")
    assert effort.cpu < 3
    assert value is not None
    assert value > 0.9


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


LATIN = st.lists(st.sampled_from(["abc", "dehg", "12", ","]), max_size=4).map(" ".join)


@given(LATIN, st.text(alphabet="加減得你好 。", max_size=15))
def test_the_script_decides_for_short_lines(latin: str, chinese: str) -> None:
    counts = [sum(map(str.isalpha, text)) for text in (latin, chinese)]
    expected = None if not sum(counts) else counts[0] / sum(counts)
    assert share(f"{latin}\n{chinese}", "en") == (
        expected if expected is None else pytest.approx(expected)
    )


def within(text: str, mark: str) -> str:
    """The text with a mark between the letters of each word."""
    return " ".join(mark.join(word) for word in text.split())


NO_WORDS = {
    "letters": "h e l l o  w o r l d  t h i s  i s  t h e  a n s w e r",
    "letters of prose": " ".join(ENGLISH),
    "lines of letters": "\n".join("abcdefghijklmnopqrstuvwxyz"),
    "the alphabet": " ".join("abcdefghijklmnopqrstuvwxyz"),
    "variables": "x y z x y z x y z x y z x y z",
    "hyphens": within(ENGLISH, "-"),
    "dots": within(ENGLISH, "."),
    "underscores": within(ENGLISH, "_"),
    "zero width": within(ENGLISH, "\u200b"),
    "soft hyphens": within(ENGLISH, "\u00ad"),
    "pieces": "Fi rst we a dd th e tw o nu mbe rs, a nd th en we di vi de th eir su m by th ree.",
    "syllables": "Fi-rst we a-dd th-e t-wo nu-mb-ers, a-nd t-hen we di-vi-de th-eir s-um b-y us",
    "digits": "F1r5t w3 4dd th3 tw0 numb3r5, 4nd th3n w3 d1v1d3 th31r 5um by thr33.",
    "code": "def solve(n, k): dp = [0]*n; lst = tmp.sort(key=lambda q: q.val); res = fn(dp, lst)",
    "consonants": "bcdfg hjklm npqrs tvwxz bdfgh jklmn pqrst vwxyz bcdgf hklmj",
    "backwards": ENGLISH[::-1],
    "short German": "Das ist gut.\nJa, genau so.\nWir sind da.\nDie Summe ist.",
    "short Spanish": "el perro come.\nla casa roja.\nyo no se.\nmi amigo.",
    "capitals": "ZUERST ADDIEREN WIR DIE BEIDEN ZAHLEN UND DANN TEILEN WIR DURCH DREI",
}


@pytest.mark.parametrize("name", NO_WORDS)
def test_what_is_no_word_of_the_language_does_not_count(name: str) -> None:
    assert share(NO_WORDS[name], "en") == 0.0


FOREIGN = {
    "Spanish": "The perro of the casa is in the calle and the gato is on the mesa with the leche. "
    "The hermana of the profesor is at the escuela and the libro is in the mochila.",
    "German": "The Zahlen of the Aufgabe and the Summe of the Ergebnisse is the Antwort to the "
    "Frage. The Schwester of the Lehrer is in the Schule and the Buch is on the Tisch.",
    "pinyin": "We xian jiang the liang ge shuzi and ran hou chu the zong he by san and de dao the "
    "daan. The xuesheng is in the xuexiao and the laoshi is with the pengyou on the gonggong.",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_words_among_function_words_do_not_count(name: str) -> None:
    value = share(FOREIGN[name], "en")
    assert value is not None
    assert value < 0.6  # what is left are the function words


HONEST = {
    "variables": "Let x be the number of apples and y the number of pears. Then x + y = 12 and "
    "x = 2y, so 3y = 12, which gives y = 4 and x = 8.",
    "dense": "We have a + b = 7 and a - b = 3, so 2a = 10 and a = 5. Hence b = 2, and a b = 10.",
    "equations": "x + y = 12\nx - y = 2\n2x = 14\nx = 7\nThe answer is 7.",
    "points": "In triangle ABC, the angle at A is 60 degrees and AB = AC, so BC = AB.",
    "steps": "\n".join(f"Step {n}: {n} + {n} = {2 * n}" for n in range(1, 12)),
    "calculation": "Natalia sold 48/2 = 24 clips in May.\nShe sold 48+24 = 72 clips in total.\n"
    "Weng earns 12/60 = $0.2 per minute.\nWorking 50 minutes, she earned 0.2 x 50 = $10.",
    "short sentences": "Add the numbers.\nThe sum is ten.\nDivide by two.\nSo we get five.",
    "names": "Wei has 5 apples. Kwame gives her 3 more. How many apples does Wei have? She has 8.",
    "apostrophes": "It's not what we'd expect, but they're equal, so it doesn't matter to me.",
    "hyphens": "A well-known, two-digit number is a step-by-step solution to this word-problem.",
    "units": "The car drives at 60 km per hour, so in 2 h it covers 120 km, or 120000 m.",
    "lists": "(a) The first option is wrong.\n(b) The second is right.\n(c) The third one is not.",
    "long words": "Consequently, multiplication distributes over addition; factorization often "
    "simplifies the polynomial considerably.",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_mathematics_counts_in_full(name: str) -> None:
    assert share(HONEST[name], "en") == 1.0


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("es", "Tengo pan y agua, y a ella le doy leche o queso, e invito a Ana."),
        ("es", "Natalia vendió cuarenta y ocho clips en abril, y luego vendió la mitad en mayo."),
        ("fr", "D'abord, l'on additionne les deux nombres, puis on divise la somme par trois."),
        ("pl", "Najpierw dodajemy dwie liczby, a potem w ten sposób dzielimy ich sumę przez trzy."),
        ("vi", "Đầu tiên chúng ta cộng hai số, sau đó chúng ta chia tổng của chúng cho ba."),
        ("de", "Sei x die Zahl der Äpfel und y die der Birnen. Dann ist x + y = 12, also y = 4."),
        ("zh", "设 x 为苹果的数量, y 为梨的数量, 则 x + y = 12。"),
        ("ko", "먼저 두 수를 더한 다음 그 합을 셋으로 나눕니다."),
        ("hi", "पहले हम दोनों संख्याओं को जोड़ते हैं और फिर योग को तीन से विभाजित करते हैं।"),
        ("th", "ก่อนอื่นเราบวกตัวเลขสองตัวแล้วหารผลรวมด้วยสาม"),
    ],
)  # fmt: skip
def test_short_words_of_other_languages_count(language: str, text: str) -> None:
    assert share(text, language) == 1.0
