"""`exact_answer` and `numeric_answer`: extraction, comparison, tolerances, truncation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from groupwise_verifiable.mathematics.reward import MathEquivalence
from groupwise_verifiable.text.answers import ExactAnswer, NumericAnswer
from groupwise_verifiable.text.squad import AnswerF1


def exact(completion: str, gold: object, **settings: object) -> float | None:
    reward = ExactAnswer(ExactAnswer.Config.model_validate(settings))
    return reward(["p"], [completion], answer=[gold])[0]


def numeric(
    completion: str, gold: object, prompt: object = "p", **settings: object
) -> float | None:
    reward = NumericAnswer(NumericAnswer.Config.model_validate(settings))
    return reward([prompt], [completion], answer=[gold])[0]


def test_exact_answer_normalises_only_white_space() -> None:
    assert exact(" New \n York ", "New York") == 1.0
    assert exact("new york", "New York") == 0.0
    assert exact("new york", "New York", ignore_case=True) == 1.0
    assert exact("It is New York", "New York") == 0.0
    assert exact("anything", None) is None
    assert exact("nan", float("nan")) is None  # an empty cell of a CSV file
    assert exact("", "") is None
    assert exact("", " \n") is None


def test_unicode_forms_of_a_letter_are_equal() -> None:
    assert exact("caf\u00e9", "cafe\u0301") == 1.0
    assert exact("cafe\u0301", "caf\u00e9") == 1.0
    assert exact("CAFE\u0301", "caf\u00e9", ignore_case=True) == 1.0
    assert exact("cafe", "caf\u00e9") == 0.0
    assert exact("\ufb01t", "fit") == 0.0  # a ligature is another text


def test_exact_answer_can_extract_a_tag_or_the_last_line() -> None:
    assert exact("so <answer>B</answer> it is", "B", extract="tag") == 1.0
    assert exact("B", "B", extract="tag") == 0.0
    assert exact("<final>B</final>", "B", extract="tag", tag="final") == 1.0
    assert exact("thinking\nB\n", "B", extract="last_line") == 1.0
    assert exact("B\nthinking", "B", extract="last_line") == 0.0
    assert exact("<think>\nB", "B", extract="last_line") == 0.0


def test_numeric_answer_takes_the_last_number() -> None:
    assert numeric("12 + 30 = 42", 42) == 1.0
    assert numeric("42, not 41", 42) == 0.0
    assert numeric("no idea", 42) == 0.0
    assert numeric("1,234.50", "1234.5") == 1.0
    assert numeric("0.75", "3/4") == 1.0
    assert numeric("42", "forty-two") is None


def test_numeric_answer_can_extract_a_tag_or_the_whole_text() -> None:
    assert numeric("<answer>42</answer> of 50", 42, extract="tag") == 1.0
    assert numeric("<answer>42 of 50</answer>", 42, extract="tag") == 0.0
    assert numeric("42", 42, extract="tag") == 0.0
    assert numeric(" 42.", 42, extract="whole") == 1.0
    assert numeric("= 42", 42, extract="whole") == 0.0


def test_a_fraction_is_right_only_if_reduced_and_not_copied_from_the_prompt() -> None:
    assert numeric("10/2", 5) == 0.0
    assert numeric("<answer>10 / 2</answer>", 5, extract="tag") == 0.0
    assert numeric("6/8", 0.75) == 0.0
    assert numeric("3/4", 0.75) == 1.0
    assert numeric("12/5", 2.4, "What is 12 / 5?") == 0.0
    assert numeric("12/5", 2.4, [{"role": "user", "content": "What is 12/5?"}]) == 0.0
    assert numeric("2.4", 2.4, "What is 12/5?") == 1.0
    # If the gold answer is a fraction, it may stand in the prompt.
    assert numeric("3/4", "3/4", "Which is larger, 3/4 or 2/3?") == 1.0
    assert numeric("6/8", "3/4") == 1.0


def test_answers_within_thinking_do_not_count() -> None:
    assert numeric("<think>42</think>", 42) == 0.0
    assert numeric("<think>42", 42) == 0.0
    assert numeric("41</think> so 42", 42) == 1.0
    assert numeric("<think><answer>42</answer></think>", 42, extract="tag") == 0.0


def test_tolerances_are_exact_decimals_and_include_their_bounds() -> None:
    assert numeric("1.1", 1) == 0.0
    assert numeric("1.1", 1, absolute=0.1) == 1.0
    assert numeric("1.1000001", 1, absolute=0.1) == 0.0
    assert numeric("-110", -100, relative=0.1) == 1.0
    assert numeric("-111", -100, relative=0.1) == 0.0


def test_a_truncated_completion_is_wrong_unless_a_tag_closes_its_answer() -> None:
    columns: dict[str, Sequence[Any]] = {"answer": [42, 42], "truncated": [True, False]}
    texts = ["42", "42"]
    assert NumericAnswer()(["p"] * 2, texts, **columns) == [0.0, 1.0]
    assert NumericAnswer()(["p"] * 2, texts, answer=[42, 42]) == [1.0, 1.0]
    lenient = NumericAnswer(NumericAnswer.Config(ended=False))
    assert lenient(["p"] * 2, texts, **columns) == [1.0, 1.0]
    tags = ["<answer>42</answer>"] * 2
    tagged = NumericAnswer(NumericAnswer.Config(extract="tag"))
    assert tagged(["p"] * 2, tags, **columns) == [1.0, 1.0]
    ended = NumericAnswer(NumericAnswer.Config(extract="tag", ended=True))
    assert ended(["p"] * 2, tags, **columns) == [0.0, 1.0]
    with pytest.raises(ValueError, match="'numeric_answer' needs the column 'truncated'"):
        ended(["p"], ["42"], answer=[42])


def test_errors_name_the_column_and_the_setting() -> None:
    with pytest.raises(ValueError, match="needs the column 'answer'; the columns are: solution"):
        ExactAnswer()(["p"], ["a"], solution=["a"])
    with pytest.raises(ValidationError, match="extra"):
        NumericAnswer.Config.model_validate({"extrakt": "tag"})
    with pytest.raises(ValueError, match="argument"):
        NumericAnswer()(["p"] * 2, ["1", "2"], answer=[1])


def test_gold_numbers_as_in_gsm8k() -> None:
    golds = ["9 * 2 = <<9*2=18>>18\n#### 18", "#### 1,200", "18"]
    texts = ["It is 18.", "It is $1,200.", "It is 18."]
    assert NumericAnswer()(["p"] * 3, texts, answer=golds) == [1.0, 1.0, 1.0]


REWARDS = (ExactAnswer(), NumericAnswer(), MathEquivalence())


@pytest.mark.parametrize("reward", REWARDS[1:])
@pytest.mark.parametrize(
    "gold", [["3", "4"], ["3", None], {"value": "3"}, [{"value": 3}], [[3, 4]]]
)
def test_a_gold_that_is_no_single_answer_is_refused(reward: Any, gold: object) -> None:
    """By what tries rewards on rows; and it pays nothing, as Python's text of it is no answer."""
    with pytest.raises(ValueError, match="expected one gold answer, a string, a number"):
        reward.gold_completion({"answer": gold})
    for text in (str(gold), json.dumps(gold), "3"):
        assert reward(["p"], [rf"\boxed{{{text}}}"], answer=[gold]) == [None]


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("gold", [["3"], (3,), [["3"]], 3, "3"])
def test_the_one_element_of_a_list_is_the_gold_answer(reward: Any, gold: object) -> None:
    completion = reward.gold_completion({"answer": gold})
    assert reward(["p", "p"], [completion, "4"], answer=[gold] * 2) == [1.0, 0.0]
    assert completion.strip("\\boxed{}") == "3"
    assert reward(["p"], ["3"], answer=[[]]) == [None]


PUBLISHED = {
    "nq_open": ["Sunset Blvd", "Sunset Boulevard"],
    "trivia_qa": {
        "value": "Sunset Boulevard",
        "aliases": ["Sunset Blvd", "West Sunset Boulevard"],
        "normalized_aliases": ["sunset blvd"],
        "matched_wiki_entity_name": "Los Angeles",
        "type": "WikipediaEntity",
    },
    "squad": {"text": ["Sunset Boulevard", "Sunset Blvd"], "answer_start": [12, 80]},
    "search_r1": {
        "ground_truth": {"target": ["Sunset Boulevard", "Sunset Blvd"]},
        "style": "rule",
    },
}


@pytest.mark.parametrize("gold", PUBLISHED.values(), ids=PUBLISHED)
def test_each_accepted_answer_of_published_rows_is_right_and_nothing_else(gold: object) -> None:
    """Of a sentence that holds all of them none is the answer."""
    strict = ("Sunset Boulevard", "**Sunset Blvd**", "The answer is Sunset Boulevard")
    squad = ("the sunset boulevard!", "SUNSET BLVD.", " Sunset   Blvd")
    wrong = (
        *("Sunset", "Hollywood Boulevard", "not Sunset Boulevard", "Los Angeles", "rule", "12", ""),
        *("Sunset Boulevard Sunset Blvd", "Sunset Boulevard or Sunset Blvd", str(gold)),
        "It is Sunset Boulevard, Sunset Blvd, or West Sunset Boulevard",
    )
    assert [exact(text, gold) for text in strict] == [1.0] * 3
    assert [exact(text, gold, rules="squad") for text in squad] == [1.0] * 3
    assert [exact(text, gold) for text in squad[:2]] == [0.0] * 2
    for rules in ("strict", "squad"):
        assert {exact(text, gold, rules=rules) for text in wrong} == {0.0}
        assert exact("<answer>Sunset Blvd</answer>", gold, rules=rules, extract="tag") == 1.0
        assert exact("Sunset Blvd", gold, rules=rules, extract="tag") == 0.0


def test_the_first_accepted_answer_is_stated() -> None:
    reward = ExactAnswer(ExactAnswer.Config(extract="tag"))
    for gold in PUBLISHED.values():
        stated = reward.gold_completion({"answer": gold})
        assert stated is not None
        assert reward(["p"], [stated], answer=[gold]) == [1.0]


@pytest.mark.parametrize("gold", [[], [None], ["", None], {"text": []}, {"value": None}])
def test_a_row_without_an_accepted_answer_is_not_judged(gold: object) -> None:
    """As the questions of SQuAD 2.0 that have no answer."""
    assert ExactAnswer().gold_completion({"answer": gold}) is None
    for text in ("", "None", "[]"):
        assert exact(text, gold) is None
        assert exact(text, gold, extract="tag") is None


@pytest.mark.parametrize("gold", [{"start": 3}, {}, [["a"], ["b"]], ["a", {"text": "b"}]])
def test_gold_in_which_no_answer_is_found_is_refused(gold: object) -> None:
    with pytest.raises(ValueError, match=r"expected (?:a list of )?gold answers"):
        ExactAnswer().gold_completion({"answer": gold})
    assert exact("a", gold) is None


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("The U.S.A", "USA", 1.0),
        ("the  cat's\tpyjamas", "cats pyjamas", 1.0),
        ("another", "other", 0.0),  # an article is a word
        ("The The", "the the", 1.0),
        ("", "The The", 0.0),
        ("a", "The", 0.0),
        ("?", "!", 0.0),
    ],
)
def test_the_normalisation_of_squad(answer: str, gold: str, value: float) -> None:
    assert exact(answer, gold, rules="squad") == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Sunset Blvd", 1.0),
        ("the Boulevard", 2 / 3),
        ("on Sunset Boulevard in Hollywood", 4 / 7),
        ("Sunset Sunset Sunset Sunset", 2 / 6),  # a word counts as often as gold has it
        ("Hollywood", 0.0),
        ("the", 0.0),
        ("", 0.0),
    ],
)
def test_answer_f1_is_that_of_the_best_accepted_answer(answer: str, value: float) -> None:
    golds = [PUBLISHED["nq_open"], None, {"start": 1}]
    reward = AnswerF1()
    assert reward(["p"] * 3, [answer] * 3, answer=golds) == [pytest.approx(value), None, None]
    stated = reward.gold_completion({"answer": PUBLISHED["squad"]})
    assert stated == "Sunset Boulevard"
    assert not reward.judges


@pytest.mark.parametrize("gold", [True, [False], "true", "True", "FALSE"])
def test_a_truth_value_may_be_written_as_python_or_json_has_it(gold: object) -> None:
    """A text is gold as it stands."""
    word = str(gold[0] if isinstance(gold, list) else gold)
    for written in ("true", "True", "TRUE", "false", "False", "FALSE"):
        same = written.lower() == word.lower() and written not in ("TRUE", "FALSE")
        right = written == word if isinstance(gold, str) else same
        assert exact(written, gold) == float(right)
