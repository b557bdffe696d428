"""Tasks of reasoning-gym as prompts, and their verifiers as a reward."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym
from pydantic import ValidationError

from groupwise.rewards import SampleErrors
from groupwise_verifiable import workers
from groupwise_verifiable.puzzles import source as puzzles_source
from groupwise_verifiable.puzzles.reward import ReasoningGymScore
from groupwise_verifiable.puzzles.source import ReasoningGym


def source(**settings: object) -> ReasoningGym:
    return ReasoningGym(ReasoningGym.Config.model_validate(settings))


def scores(rows: list[dict[str, Any]], answers: list[str], **settings: object) -> Any:
    columns = {name: [row[name] for row in rows] for name in ("question", "answer", "metadata")}
    reward = ReasoningGymScore(ReasoningGymScore.Config.model_validate(settings))
    return reward([row["prompt"] for row in rows], answers, **columns)


def test_rows_are_generated_on_demand_and_reproducible() -> None:
    rows = source(task="chain_sum", template="Q: {question} Answer:")
    row = rows[999_999]
    assert len(rows) == 1_000_000
    assert row == source(task="chain_sum", template="Q: {question} Answer:")[-1]
    assert row["prompt"] == f"Q: {row['question']} Answer:"
    assert row["metadata"]["source_dataset"] == "chain_sum"
    assert set(row) == {"prompt", "question", "answer", "metadata"}
    with pytest.raises(IndexError):
        rows[1_000_000]
    assert len(list(source(task="chain_sum", size=3))) == 3


def test_seeds_share_no_rows() -> None:
    options = {"min_terms": 6, "max_terms": 6, "min_digits": 6, "max_digits": 6}
    questions = [
        {row["question"] for row in source(task="chain_sum", size=50, seed=seed, options=options)}
        for seed in range(3)
    ]
    assert [len(subset) for subset in questions] == [50, 50, 50]
    assert len(set.union(*questions)) == 150


MIXED = {
    "datasets": [
        {"name": "chain_sum", "weight": 3, "config": {"min_terms": 2, "max_terms": 2}},
        {"name": "countdown"},
    ]
}


def test_a_composite_mixes_tasks_and_each_row_is_scored_by_its_task() -> None:
    rows = list(source(task="composite", size=40, options=MIXED))
    assert rows == list(source(task="composite", size=40, options=MIXED))
    tasks = [row["metadata"]["source_dataset"] for row in rows]
    assert 20 <= tasks.count("chain_sum") < 40
    assert set(tasks) == {"chain_sum", "countdown"}
    sums = [row["metadata"] for row, task in zip(rows, tasks, strict=True) if task == "chain_sum"]
    assert {each["num_terms"] for each in sums} == {2}
    subset = [rows[tasks.index("chain_sum")], rows[tasks.index("countdown")]]
    texts = [f"<answer>{row['answer']}</answer>" for row in subset]
    assert scores(subset, texts) == [1.0, 1.0]
    assert scores(subset, texts[::-1]) != [1.0, 1.0]
    with pytest.raises(ValueError, match="'composite' has no verifier of its own; leave `task`"):
        ReasoningGymScore(ReasoningGymScore.Config(task="composite"))


def test_a_composite_shares_no_rows_with_other_seeds_and_its_own_tasks() -> None:
    long = {"min_terms": 6, "max_terms": 6, "min_digits": 6, "max_digits": 6}
    mixed = {"datasets": [{"name": "chain_sum", "config": long}]}
    sources = [
        source(task="composite", size=50, options=mixed),
        source(task="composite", size=50, options=mixed, seed=1),
        source(task="chain_sum", size=50, options=long),
    ]
    assert len({row["question"] for each in sources for row in each}) == 150


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        (None, r"takes `options: .*`; datasets: Input should be a valid list, found None"),
        ([], "datasets: List should have at least 1 item"),
        ([{"weight": 1}], r"datasets\.0\.name: Field required"),
        ([{"name": "chain_sum", "wieght": 1}], r"datasets\.0\.wieght: Extra inputs"),
        ([{"name": "chain_sum", "weight": 0}], r"datasets\.0\.weight: .* greater than 0, found 0"),
        ([{"name": "chain_sums"}], "no task 'chain_sums'; did you mean chain_sum"),
        ([{"name": "composite"}], "cannot hold another composite"),
        ([{"name": "chain_sum", "config": {"seed": 1}}], r"not in `datasets\.0\.config`"),
        ([{"name": "chain_sum", "config": {"min_termz": 1}}], "'composite' refuses .*min_termz"),
        ([{"name": "chain_sum"}] * 2, "Duplicate dataset names"),
    ],
)
def test_invalid_composites_are_refused(datasets: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source(task="composite", options={"datasets": datasets} if datasets is not None else {})


def test_a_task_that_generates_all_rows_at_once_prints_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    assert len(source(task="acre", size=300)) == 300
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(puzzles_source, "_PATIENCE", 0.02)
    assert len(source(task="acre", size=1000)) == 1000  # some 0.4 s
    output = capsys.readouterr().err
    assert "the task 'acre' generates all of its 1,000 rows at once" in output
    assert "`size`" in output
    assert output.count("\n") == 1
    with pytest.raises(ValueError, match=r"for 1000000 rows \(`size`\): .*too large"):
        source(task="word_ladder", size=1_000_000)
    assert threading.active_count() == before


def test_tasks_that_have_no_million_rows_at_once_have_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(puzzles_source.SIZES, "acre", 70)
    assert [len(source(task=name)) for name in ("acre", "word_ladder")] == [70, 500]
    assert len(source(task="gcd")) == 1_000_000


def test_the_key_of_the_source_is_the_question() -> None:
    rows = source(task="chain_sum")
    assert rows.key == "question"
    assert rows.key in rows[0]


def test_chat_prompts() -> None:
    rows = source(task="chain_sum", chat=True, system="Be brief.", template="{question}!")
    assert rows[0]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": rows[0]["question"] + "!"},
    ]
    with pytest.raises(ValueError, match="`system` needs `chat: true`"):
        source(task="chain_sum", system="Be brief.")


def test_invalid_settings_and_templates_are_refused() -> None:
    with pytest.raises(ValueError, match="no task 'chain_sums'; did you mean chain_sum"):
        source(task="chain_sums")
    with pytest.raises(ValueError, match=r"'chain_sum' refuses the options .*min_termz"):
        source(task="chain_sum", options={"min_termz": 2})
    with pytest.raises(ValueError, match=r"'chain_sum' refuses the options .*'min_terms': -1"):
        source(task="chain_sum", options={"min_terms": -1})
    with pytest.raises(ValueError, match="seed belong beside `options`"):
        source(task="chain_sum", options={"seed": 2})
    with pytest.raises(ValueError, match=r"column 'questions', did you mean 'question'\? \(there"):
        source(task="chain_sum", template="{questions}!")
    with pytest.raises(ValidationError, match="seed"):
        source(task="chain_sum", seed=-1)
    with pytest.raises(ValueError, match="did you mean countdown"):
        ReasoningGymScore(ReasoningGymScore.Config(task="countdwn"))


def test_the_answer_is_read_from_the_last_tag() -> None:
    rows = [source(task="chain_sum")[0]] * 4
    gold = rows[0]["answer"]
    texts = [f"<answer>0</answer> <answer> {gold} </answer>", "<answer>none</answer>", gold, ""]
    assert scores(rows, texts) == [1.0, 0.0, 0.0, 0.0]
    assert scores(rows, texts, tag=None)[2:] == [1.0, 0.0]


def test_rows_of_several_tasks_keep_their_order() -> None:
    rows = [source(task=task)[1] for task in ("countdown", "chain_sum", "spiral_matrix")]
    texts = [f"<answer>{row['answer']}</answer>" for row in rows]
    assert scores(rows, texts) == [1.0, 1.0, 1.0]
    assert scores(rows, texts[1:] + texts[:1]) != [1.0, 1.0, 1.0]


def test_rows_without_a_task_need_the_setting() -> None:
    row = {"prompt": "", "question": "", "answer": "5", "metadata": {}}
    with pytest.raises(ValueError, match="no 'source_dataset' in a row's metadata"):
        scores([row], ["<answer>5</answer>"])
    assert scores([row], ["<answer>5</answer>"], task="chain_sum") == [1.0]


def test_answers_are_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    rows = [source(task=task)[0] for task in ("spiral_matrix", "n_queens", "countdown", "puzzle24")]
    rows += [source(task=task)[0] for task in ("simple_integration", "polynomial_multiplication")]
    assert scores(rows, [f"<answer>{code}</answer>"] * len(rows), partial=True) == [0.0] * len(rows)
    assert not mark.exists()


def test_partial_scores_need_partial_true() -> None:
    rows = [source(task=task)[0] for task in ("spiral_matrix", "sudoku", "simple_integration")]
    listed = str([int(number) for number in rows[0]["answer"].split()])
    first, rest = rows[1]["answer"].split("\n", 1)
    changed = f"{first.translate(str.maketrans('123456789', '234567891'))}\n{rest}"
    expression = f"{rows[2]['answer']} + 1 - 1"
    texts = [f"<answer>{answer}</answer>" for answer in (listed, changed, expression)]
    assert scores(rows, texts) == [0.0, 0.0, 1.0]
    # reasoning-gym's own values for a Python list and for 8 of 9 lines in another form
    assert scores(rows, texts, partial=True) == [0.1, pytest.approx(0.9 * 8 / 9), 1.0]


@pytest.mark.parametrize(
    ("answers", "timeout"),
    [
        ({"polynomial_multiplication": "9**9**9", "simple_integration": "9**9**9"}, 2.0),
        (
            {
                "boxnet": "1",
                "codeio": '{"a":' * 2_000 + "1" + "}" * 2_000,
                "game_of_life": "{}",
                "prime_factorization": "two",
            },
            10.0,
        ),
    ],
    ids=["never ends", "raises"],
)
@pytest.mark.slow
def test_answers_that_break_the_verifier_are_wrong_and_counted(
    answers: dict[str, str], timeout: float
) -> None:
    rows = [source(task=task)[0] for task in (*answers, "chain_sum")]
    texts = [f"<answer>{answer}</answer>" for answer in (*answers.values(), rows[-1]["answer"])]
    columns = {name: [row[name] for row in rows] for name in ("question", "answer", "metadata")}
    metrics: dict[str, float] = {}
    reward = ReasoningGymScore(ReasoningGymScore.Config(timeout=timeout))
    values = reward(texts, texts, log_metric=metrics.__setitem__, **columns)
    assert values == [0.0] * len(answers) + [1.0]
    assert metrics == {"unchecked": len(answers) / len(rows)}


def test_a_row_whose_gold_answer_cannot_be_checked_is_an_error() -> None:
    rows = [source(task="game_of_life")[0], source(task="game_of_life")[1]]
    rows[0] = {**rows[0], "answer": "7"}
    with pytest.raises(SampleErrors) as caught:
        scores(rows, ["<answer>[[0]]</answer>", f"<answer>{rows[1]['answer']}</answer>"])
    assert list(caught.value.values) == [None, 1.0]
    assert list(caught.value.errors) == [0]
    assert "on the gold answer, too: its row or its checker is broken" in caught.value.errors[0]


def test_a_copy_of_the_question_scores_0() -> None:
    row = source(task="simple_integration")[0]
    metadata = row["metadata"]
    copied = f"<answer>Integral({metadata['integrand']}, {metadata['variable']})</answer>"
    assert scores([row], [copied]) == [0.0]


def test_a_task_without_wrong_answers_is_refused() -> None:
    row = source(task="propositional_logic")[0]
    verify = reasoning_gym.get_score_answer_fn("propositional_logic")
    assert verify(row["metadata"]["premises"][0], row) == 1.0
    with pytest.raises(ValueError, match="refuses the task 'propositional_logic': its verifier"):
        scores([row], ["<answer>P</answer>"])
    with pytest.raises(ValueError, match="refuses the task"):
        ReasoningGymScore(ReasoningGymScore.Config(task="propositional_logic"))


def test_custom_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_task.py").write_text(OWN_TASK)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_task")
    workers._close()  # workers that are running do not import from this folder
    row = source(task="own")[3]
    assert scores([row, row], ["<answer>3</answer>", "<answer>4</answer>"]) == [1.0, 0.0]
    monkeypatch.setattr(sys.modules["own_task"].Own, "__module__", "__main__")
    with pytest.raises(ValueError, match="'own' is defined in __main__, which workers cannot"):
        scores([row], ["<answer>3</answer>"])


OWN_TASK = """
from dataclasses import dataclass
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset


@dataclass
class Config:
    seed: int = 0
    size: int = 10

    def validate(self):
        pass


class Own(ProceduralDataset):
    def __getitem__(self, index):
        metadata = {"source_dataset": "own"}
        return {"question": f"Repeat {index}", "answer": str(index), "metadata": metadata}


register_dataset("own", Own, Config)
"""
