"""Answers and formats that must earn nothing, as a policy in training may find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from groupwise_verifiable.text.answers import ExactAnswer, NumericAnswer
from groupwise_verifiable.text.format import TagCount, ThinkAnswerFormat, ThinkFormat
from groupwise_verifiable.text.language import LanguageConsistency
from groupwise_verifiable.text.overlong import SoftOverlong
from groupwise_verifiable.text.repetition import Repetition

Tries = Callable[[int], None]

BLANK = ("", " ", "\n\n", "\u200b", "\0", "\ud800", "None", "null", "()", "<answer></answer>")
EVASIVE = (
    *("banana", "I do not know.", "The answer is the answer.", "it depends", "What is 2 + 3?"),
    *("nan", "NaN", "inf", "-inf", "Infinity", "1e999", "-1e999", "True", "False", "0", "1"),
)
# None of these is 5, and in none of them 5 is the result.
LAST_NUMBERS = (
    *("2+3+5-5", "0+5", "10 - 5", "10 -5", "10\u20135", "1*5", "25/5", "10/2", "5/1", "5//1"),
    *("2^5", "2**5", "x^{5}", "x_5", r"\frac{25}{5}", r"\sqrt{5}", r"2 \times 5", r"0 \cdot 5"),
    *("0 + (5", "0 + $5", "x + 5", "\u221a5", "\u00b15", r"\pm 5", "+/-5", "--5", "5\u00b2"),
    *("0x5", "0b5", "1e0005", "1e-9995", "5e0.5", "1.2.5", "12:05", "3,5", "1,005,5"),
    *(
        "1_005",
        "1'005",
        "1\u202f005",
        "1{,}005",
        "\u0665",
        "\u2085",
        "\u2164",
        "5" * 5000,
    ),
    *(
        "5\u0665",
        "\u0665" + "5",
        "-5",
        "\u22125",
        "\u20135",
        "5,000",
        "5 000",
        "500%",
        "5.5",
        "0.5",
    ),
    *("<think>5</think>", "<think>5", "5</think>", "<think><think>a</think>5</think>"),
)
WHOLE = (
    *(text for text in LAST_NUMBERS if text != "5</think>"),
    *("1 2 3 4 5", "4 or 5", "5 or 6", "6=5", "1=2=3=4=5", "5%", "5 %", "5!", "5\u00b0", "2x=5"),
    *("5;5", "[5]", "|5|", "not 5", "~5", ">5", "5\u200b", "5\u0301", "5k", "5\n5"),
)
TAGS = (
    "<answer>5",
    "5</answer>",
    "<ANSWER>5</ANSWER>",
    '<answer type="number">5</answer>',
    "<answer >5</answer>",
    "<answer><answer>5</answer></answer>",
    "<answer>4<answer>5</answer>",
    "<answer>5</answer><answer>4</answer>",
    "<answer>4 5</answer>",
    "<think><answer>5</answer></think>",
    "<think><answer>5</answer>",
    "<answer>5</answer></think>",
    "<think>a<think>b</think><answer>5</answer></think>",
    "<think>a</think><answer>4</answer><think><answer>5</answer></think>",
    r"\boxed{5}",
    "&lt;answer&gt;5&lt;/answer&gt;",
    "<answer/>5</answer>",
    "<\u200banswer>5</answer>",
    "<answer>5</answ\u0435r>",  # a Cyrillic letter
)


def value_of(reward: Any, text: str, prompt: str = "What is 2 + 3?", **columns: Any) -> Any:
    return reward([prompt], [text], **{name: [value] for name, value in columns.items()})[0]


@pytest.mark.attack(
    "A number is right only if it is the result", "texts that contain 5, but not as the result"
)
@pytest.mark.parametrize("extract", ["last_number", "whole", "tag"])
def test_only_the_right_number_earns_something(extract: str, tries: Tries) -> None:
    reward = NumericAnswer(NumericAnswer.Config.model_validate({"extract": extract}))
    texts = {"last_number": (*BLANK, *EVASIVE, *LAST_NUMBERS), "whole": (*BLANK, *WHOLE)}.get(
        extract, (*BLANK, *EVASIVE, *TAGS, *(f"<answer>{text}</answer>" for text in WHOLE))
    )
    right = "<answer>5</answer>" if extract == "tag" else "5"
    assert value_of(reward, right, answer=5) == 1.0
    assert {text: value_of(reward, text, answer=5) for text in texts} == dict.fromkeys(texts, 0.0)
    tries(len(texts))


@pytest.mark.attack("A copy of the question earns nothing", "the expressions of 30 prompts")
def test_a_copy_of_the_question_earns_nothing(tries: Tries) -> None:
    reward = NumericAnswer()
    questions = (
        *((f"{2 * n} - {n}", n) for n in range(2, 12)),
        *((f"0 + {n}", n) for n in range(2, 7)),
        *((f"{n * n} / {n}", n) for n in range(2, 12)),
        *((f"{n}/10", n / 10) for n in (1, 3, 7, 9, 11)),
    )
    for question, gold in questions:
        for text in (question, f"What is {question}?", f"= {question}", question.replace(" ", "")):
            assert value_of(reward, text, f"What is {question}?", answer=gold) == 0.0, text
            tries(1)


@pytest.mark.attack(
    "Counting until the limit of tokens earns nothing", "completions cut off at each of 30 numbers"
)
def test_counting_until_the_limit_earns_nothing(tries: Tries) -> None:
    for gold in range(1, 31):
        text = " ".join(map(str, range(1, gold + 1)))
        assert value_of(NumericAnswer(), text, answer=gold, truncated=True) == 0.0
        tries(1)


EXACT = (
    *BLANK,
    *EVASIVE,
    *(
        "Paris, London",
        "London Paris",
        "Paris Paris",
        "not Paris",
        "Pari",
        "paris",
        "PARIS",
    ),
    *("P\u0430ris", "Paris\u200b", "\u200bParis", "P a r i s", "Paris\0"),
    *(
        "sirap",
        "Paris" * 3,
        "Paris\nLondon",
        "Paris\ud800",
        "<answer>Paris</answer>",
        "Pa\u0301ris",
    ),
)


@pytest.mark.attack(
    "Only the gold string itself is right", "strings that look like it or contain it"
)
@pytest.mark.parametrize("extract", ["whole", "tag", "last_line"])
def test_only_the_gold_string_earns_something(extract: str, tries: Tries) -> None:
    reward = ExactAnswer(ExactAnswer.Config.model_validate({"extract": extract}))
    form = "<answer>{}</answer>" if extract == "tag" else "{}"
    texts = [form.format(text) for text in EXACT]
    if extract == "tag":
        texts += [text.replace("5", "Paris") for text in TAGS]
    if extract == "last_line":
        texts += ["<think>\nParis\n</think>", "<think>\nParis", "Paris\n</think>", "Paris\nbanana"]
    assert value_of(reward, form.format("Paris"), answer="Paris") == 1.0
    assert {text: value_of(reward, text, answer="Paris") for text in texts} == dict.fromkeys(
        texts, 0.0
    )
    tries(len(texts))


@pytest.mark.attack(
    "A row without an answer gives no reward", "empty answers to rows with an empty gold answer"
)
def test_a_row_with_an_empty_gold_answer_gives_no_reward(tries: Tries) -> None:
    for gold in ("", " ", "\n", None, float("nan")):
        for text in BLANK:
            assert value_of(ExactAnswer(), text, answer=gold) is None
            assert value_of(NumericAnswer(), text, answer=gold) is None
            tries(2)


GOOD = "<think>\nreasons\n</think>\n<answer>\n42\n</answer>"
FORMS = (
    *BLANK,
    "<think>\n\n</think>\n<answer>\n\n</answer>",
    "<think>\n</think>\n<answer>\n</answer>",
    "<think>\n \t\n</think>\n<answer>\n42\n</answer>",
    "<think>\nreasons\n</think>\n<answer>\n\u2003\n</answer>",
    GOOD + GOOD,
    GOOD + "\n" + GOOD,
    GOOD + "\n",
    GOOD + "x",
    " " + GOOD,
    GOOD.upper(),
    GOOD.replace("\n", ""),
    GOOD.replace("\n", "\r\n"),
    GOOD.replace("reasons", "<think>\na\n</think>\nb"),
    GOOD.replace("42", "1\n</answer>\n<answer>\n2"),
    GOOD.replace("42", "<think>\na"),
    GOOD.replace("think", "answer"),
    GOOD.replace("<think>", '<think a="b">'),
    GOOD.replace("</think>", "<think/>"),
    GOOD.replace("reasons\n</think>\n<answer>\n", "reasons\n"),
    "<answer>\n42\n</answer>\n<think>\nreasons\n</think>",
    "<think>\nreasons\n<answer>\n42\n</answer>\n</think>",
    "</answer>\n<answer>\n</think>\n<think>\n",
)


@pytest.mark.attack(
    "A format is right only if it is complete and not empty", "broken, empty and repeated formats"
)
def test_only_the_complete_format_earns_something(tries: Tries) -> None:
    reward = ThinkAnswerFormat()
    assert value_of(reward, GOOD) == 1.0
    assert {text: value_of(reward, text) for text in FORMS} == dict.fromkeys(FORMS, 0.0)
    # `TagCount` gives 1 for all four tags in any order, as in open-r1.
    nested_tags = "<think>\n<answer>\n42\n</answer>\n</think>\n"
    assert value_of(TagCount(), nested_tags) == 1.0
    incomplete = [
        text for text in FORMS if text.count("think>\n") != 2 or text.count("answer>") != 2
    ]
    assert all(value_of(TagCount(), text) < 1.0 for text in incomplete)
    tries(len(FORMS) + len(incomplete))


@pytest.mark.attack(
    "Thinking must be closed and followed by an answer", "thinking without an end or an answer"
)
def test_thinking_without_an_end_or_an_answer_earns_nothing(tries: Tries) -> None:
    texts = (
        *BLANK,
        *("<think>", "</think>", "<think></think>", "<think>a</think>", "<think>a</think>\n \t"),
        *("</think><think>b", "a<think>b</think>c", " <think>a</think>b", "<think>a<think/>b"),
        *("<think>a</think>b</think>c", "<think>a<think>b</think>c", "<think>a</think><think>b"),
        *("<THINK>a</THINK>b", "<think >a</think>b", "<think>a</ think>b", "think a /think b"),
        *("<thinking>a</thinking>b", "<think>a</think", "<think>a&lt;/think&gt;b"),
    )
    assert value_of(ThinkFormat(), "<think>a</think>b") == 1.0
    assert {text: value_of(ThinkFormat(), text) for text in texts} == dict.fromkeys(texts, 0.0)
    tries(len(texts))


@pytest.mark.attack(
    "Text in another language earns little", "sentences of other languages, and similar letters"
)
def test_text_in_another_language_earns_little(tries: Tries) -> None:
    german = "Zuerst addieren wir die beiden Zahlen, und dann teilen wir durch drei."
    texts = (
        german,
        german.upper(),
        german.replace(" ", "  "),
        german + " " + german,
        "<think>" + german + "</think>",
        "Premièrement nous additionnons les deux nombres, et ensuite nous divisons par trois.",
        "Primero sumamos los dos números y después dividimos la suma entre tres.",
        "Per prima cosa sommiamo i due numeri e poi dividiamo il risultato per tre.",
        "Eerst tellen we de twee getallen bij elkaar op en daarna delen we door drie.",
        "Najpierw dodajemy obie liczby, a następnie dzielimy ich sumę przez trzy.",
        "Önce iki sayıyı toplarız ve sonra toplamı üçe böleriz.",  # noqa: RUF001
        "Först adderar vi de båda talen och sedan dividerar vi summan med tre.",
        "首先我们把两个数字加起来然后除以三",
        "まず二つの数を足してから三で割ります",
        "먼저 두 수를 더한 다음 셋으로 나눕니다",
        "Сначала сложим два числа, а затем разделим сумму на три.",  # noqa: RUF001
        "Πρώτα προσθέτουμε τους δύο αριθμούς και μετά διαιρούμε με το τρία.",
        "أولا نجمع العددين ثم نقسم المجموع على ثلاثة",
        "ראשית נחבר את שני המספרים ואז נחלק בשלוש",
        "पहले हम दो संख्याओं को जोड़ते हैं फिर तीन से भाग देते हैं",
        "\uff26\uff49\uff52\uff53\uff54 \uff57\uff45 \uff41\uff44\uff44",  # full-width letters
        "\U0001d405\U0001d422\U0001d42b\U0001d42c\U0001d42d \U0001d430\U0001d41e",  # bold ones
    )
    reward = LanguageConsistency()
    earned = {text: value_of(reward, text) for text in texts}
    assert {text: value for text, value in earned.items() if value > 0.1} == {}
    assert [value_of(reward, text) for text in ("", " ", "1 + 1 = 2", "\ud800", "$x$")] == [
        None
    ] * 5
    tries(len(texts) + 5)


@pytest.mark.attack("Repetition and excessive length are always penalised", "loops and long texts")
def test_loops_and_long_texts_are_penalised(tries: Tries) -> None:
    for unit in (
        "a ",
        "a b ",
        "a b c ",
        "wait, ",
        "A a ",
        "so\n",
        "x\t",
        "\ud800 ",
        "1 ",
        "0 0 0 1 ",
    ):
        for count in (10, 1000):
            assert value_of(Repetition(), unit * count) < -0.3
            ids = [ord(character) for character in unit * count]
            assert value_of(Repetition(), unit * count, completion_ids=ids) < -0.3
            tries(2)
    overlong = SoftOverlong(SoftOverlong.Config(max_length=100, cache=20))
    lengths = range(81, 121)
    values = [value_of(overlong, "", completion_ids=[0] * length) for length in lengths]
    assert values == sorted(values, reverse=True)
    assert max(values) < 0
    assert values[20:] == [-1.0] * 20
    tries(len(lengths))
