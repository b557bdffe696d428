"""Runs that are as long as some passes over their prompts."""

import pytest

import groupwise
from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.prompts.draws import Prompts

COUNTS = {"groups_per_step": 2, "group_size": 2}


class Seen:
    def __init__(self):
        self.ids = []

    def __call__(self, completions, purpose, **columns):
        self.ids += columns["id"] if purpose == "train" else []
        return [float(len(text)) for text in completions]


def run(lab, folder, reward, **train):
    return groupwise.train(
        policy=lab.Tabular(),
        prompts={"name": "rows", "rows": lab.rows(), "held_out": 0.4},
        rewards=[{"name": reward, "label": "seen"}],
        evaluation={"prompts": 0},
        train={**COUNTS, **train},
        output=folder,
        quiet=True,
        **({"resume": True} if (folder / "run.json").exists() else {}),
    )


def test_a_run_of_two_epochs_draws_each_training_prompt_twice(lab, tmp_path):
    prompts = Prompts(lab.rows(), fraction=0.4)
    training = sorted(row["id"] for row in lab.rows() if not prompts.is_held_out(row))
    assert 0 < len(training) < 8
    seen = Seen()
    result = run(lab, tmp_path / "run", seen, data_epochs=2, schedule="linear")
    assert result.steps == -(-2 * len(training) // 2)
    assert sorted(seen.ids[: 4 * len(training)]) == sorted(4 * training)
    # The rate falls to 0 over as many steps as there are.
    rates = [row["learning_rate"] for row in result.metrics]
    assert rates == pytest.approx([1e-6 * (1 - n / result.steps) for n in range(result.steps)])
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "data_epochs: 2.0" in config
    longer = run(lab, tmp_path / "run", seen, data_epochs=3, schedule="linear")
    assert longer.steps == -(-3 * len(training) // 2)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"train": {"data_epochs": 1, "steps": 9}}, "leave one out, on the command line by"),
        (
            {"train": {"data_epochs": 1}, "prompts": {"name": "rows", "weighting": {}}},
            r"prompts\.weighting draws some prompts again",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(sections, message):
    given = {"policy": "tabular", "prompts": "rows", "rewards": ["ones"], **sections}
    with pytest.raises(UserError, match=message):
        load_config(given)
    assert load_config(given, ["train.steps=null", "prompts.weighting=null"])


def test_schedules_must_fit_the_steps_that_are_counted(lab, tmp_path):
    with pytest.raises(UserError, match=r"4 passes over \d prompts are \d+ steps, .* is 2"):
        run(lab, tmp_path / "run", Seen(), data_epochs=4, schedule="cosine", schedule_steps=2)
