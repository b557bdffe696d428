"""`visual_questions`: GenEval 2's and DPG-Bench's questions, against the published arithmetic."""

import json
import math

import pytest
import torch
from tests.llm.vision import standins
from transformers import AutoModelForImageTextToText, AutoProcessor

from groupwise import testing
from groupwise_judge.checklist import checklist
from groupwise_judge.visual_questions import VisualQuestions

WORDS = ["<pad>", "yes", " Yes", "No", "two", "2", " Two", "three", "red"]


class Words:
    """A tokenizer of these words."""

    def __len__(self):
        return len(WORDS)

    def batch_decode(self, rows):
        return [WORDS[row[0]] for row in rows]


class Scripted:
    """A model that answers each question by given probabilities of words."""

    tokenizer = Words()

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def log_probs(self, chats, tokens):
        rows = []
        for chat in chats:
            (message,) = chat
            *pictures, asked = message["content"]
            assert [part["type"] for part in pictures] == ["image"]
            self.asked.append(asked["text"])
            chances = self.answers[asked["text"].split("?")[0]]
            rows.append([chances.get(WORDS[token], 1e-12) for token in tokens.tolist()])
        return torch.tensor(rows).log(), torch.zeros(len(chats), dtype=torch.bool)


def reward(answers, **options):
    made = VisualQuestions(VisualQuestions.Config(model="some/model", **options))
    made.model = Scripted(answers)
    return made


PICTURE = standins.picture(16, 16)
ANSWERS = {
    "Is there a dog": {"yes": 0.5, " Yes": 0.3, "No": 0.1},
    "How many dogs": {"two": 0.2, "2": 0.5, " Two": 0.1, "three": 0.1},
    "Is it red": {"yes": 0.2, "No": 0.6},
    "Is it big": {"yes": 0.9, "No": 0.05},
}


def test_soft_tifa_is_the_mean_of_the_probabilities_of_the_answers():
    """All spellings that are one token count, and of numbers the digit, too."""
    row = [["Is there a dog?", "Yes"], ["How many dogs?", "two"], ["Is it red?", "Yes"]]
    chances = [0.8, 0.8, 0.2]
    arithmetic = reward(ANSWERS)
    metrics = {}
    assert arithmetic(
        ["p"] * 3,
        [PICTURE] * 3,
        questions=[row, None, json.dumps(row[:1])],
        log_metric=metrics.__setitem__,
    ) == [pytest.approx(sum(chances) / 3), None, pytest.approx(0.8)]
    assert arithmetic.model.asked[0] == "Is there a dog? Answer in one word."
    assert metrics == {"held": 0.75}
    geometric = reward(ANSWERS, mean="geometric")
    assert geometric(["p"], [PICTURE], questions=[row]) == [
        pytest.approx(math.prod(chances) ** (1 / 3), rel=1e-5)
    ]


def test_a_question_of_dpg_counts_only_if_its_parents_hold():
    """Columns of its table: the questions of what is not there are wrong, whatever the answer."""
    row = [
        {"proposition_id": 1, "dependency": "0", "question_natural_language": "Is there a dog?"},
        {"proposition_id": 2, "dependency": "1", "question_natural_language": "Is it red?"},
        {"proposition_id": 3, "dependency": "1,2", "question_natural_language": "Is it big?"},
        {"proposition_id": 4, "dependency": "1", "question_natural_language": "Is it big?"},
    ]
    hard = reward(ANSWERS, rule="yes_no")
    assert hard(["p"], [PICTURE], questions=[row]) == [(1 + 0 + 0 + 1) / 4]
    soft = reward(ANSWERS)
    assert soft(["p"], [PICTURE], questions=[row]) == [pytest.approx((0.8 + 0.2 + 0 + 0.9) / 4)]
    # A grandparent counts, too: 3 holds by itself and by 2, which has no dog to be of.
    chain = [
        {"id": 1, "question": "Is it red?"},
        {"id": 2, "question": "Is there a dog?", "parents": [1]},
        {"id": 3, "question": "Is it big?", "parents": [2]},
    ]
    assert hard(["p"], [PICTURE], questions=[chain]) == [0.0]


def test_probabilities_are_those_of_transformers_and_the_picture_comes_first(rounding):
    folder = standins.folder("qwen2_5_vl")
    pictures = [standins.picture(*size) for size in ((16, 16), (32, 16))]
    rows = [[["Is it a cat?", "y"], ["Is it wet?", "n"]], [["Is it a hat?", "y"]]]
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    expected = []
    for picture, row in zip(pictures, rows, strict=True):
        chances = []
        for question, answer in row:
            text = {"type": "text", "text": f"{question} Answer in one word."}
            inputs = processor.apply_chat_template(
                [{"role": "user", "content": [{"type": "image", "image": picture}, text]}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
            token = processor.tokenizer.convert_tokens_to_ids(answer)
            with torch.no_grad():
                chances.append(model(**inputs).logits[0, -1].softmax(dim=-1)[token].item())
        expected.append(sum(chances) / len(chances))
    made = VisualQuestions(VisualQuestions.Config(model=str(folder), batch=2))
    made.load()
    rounding.same(
        lambda: torch.tensor(made(["p"] * 2, pictures, questions=rows)), torch.tensor(expected)
    )
    table = [{"prompt": text, "questions": rows[n % 2]} for n, text in enumerate("abc")]
    testing.check_reward(made, table, pictures * 3, group_size=2)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("Is it?", "expected a list of questions, each a text, .*, or its JSON, found 'Is it"),
        ("[" * 200_000, "expected a list of questions"),
        (7, "expected a list of questions"),
        ([7], "question 1: expected a list of questions"),
        ([{"question": "a?", "parents": [2]}], "question 'a.': parent 2 is not another one"),
        ([{"question": "a?", "parents": [1]}], "id 1 is not another one"),
        ([{"question": "a?", "parents": "x"}], "parents: expected numbers, found 'x'"),
    ],
)
def test_cells_that_are_no_questions_are_refused(cell, message):
    with pytest.raises(ValueError, match=f"here.*{message}"):
        checklist(cell, "here")


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match="the judge needs the column 'questions'"):
        reward(ANSWERS)(["p"], [PICTURE])
    with pytest.raises(ValueError, match="sample 0: its questions are about a picture, found text"):
        reward(ANSWERS)(["p"], ["a text"], questions=[["Is it red?"]])
    with pytest.raises(ValueError, match="'blue' is not one token of the judge"):
        reward(ANSWERS)(["p"], [PICTURE], questions=[[["Is it red?", "blue"]]])
    with pytest.raises(ValueError, match=r"a text with \{question\} in it"):
        reward(ANSWERS, ask="Well?")
