"""Watched rewards: measured at evaluations, never trained on; an alarm if they worsen."""

import json
import math
import sys

import pytest
from tests.command_line import call

import groupwise
from groupwise.config.load import load_config
from groupwise.kit.errors import UserError


def brevity(completions):
    return [-float(len(text)) for text in completions]


def length(completions):
    return [float(len(text)) for text in completions]


def train(lab, folder, *, policy=None, prompts=8, **sections):
    """A run that is rewarded for 1s and evaluated on its training prompts."""
    rows = lab.rows(prompts)
    evaluation = {"prompts": prompts, "samples": 4, "every": 5, "threshold": 0.5}
    evaluation |= {"source": {"name": "rows", "rows": rows}, **sections.pop("evaluation", {})}
    settings = {"steps": 10, "groups_per_step": prompts, "learning_rate": 0.3}
    return groupwise.train(
        policy=policy or lab.Tabular(),
        prompts={"name": "rows", "rows": rows, "held_out": 0.0},
        rewards=sections.pop("rewards", [lab.ones]),
        train={**settings, **sections.pop("settings", {})},
        evaluation=evaluation,
        output=folder / "run",
        **{"quiet": True, **sections},
    )


def lines(result, name="metrics.jsonl"):
    return [json.loads(line) for line in (result.folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def hacked_run(lab, tmp_path_factory):
    """A run that makes completions longer, while `brevity` is watched."""
    return train(lab, tmp_path_factory.mktemp("hacked"), watch=[length, brevity])


def test_a_watched_reward_may_be_better_if_lower(hacked_run, lab, tmp_path):
    result = train(lab, tmp_path, watch=[length], **{"watch.0.better": "lower"})
    assert result.alarms["length"].watched.mean == -hacked_run.alarms["brevity"].watched.mean
    patient = {"watch.0.better": "lower", "watch.0.tolerance": 4.0}
    assert train(lab, tmp_path, watch=[length], overwrite=True, **patient).alarms == {}


def test_an_alarm_is_in_the_result_the_metrics_and_the_report(hacked_run):
    assert set(hacked_run.alarms) == {"brevity"}
    alarm = hacked_run.alarms["brevity"]
    assert alarm.trained.rose()
    assert alarm.watched.fell()
    record = json.loads((hacked_run.folder / "result.json").read_text())
    assert record["alarms"]["brevity"]["watched"]["mean"] == pytest.approx(
        alarm.watched.mean, rel=1e-5
    )
    assert record["after"]["watch/brevity"] < record["before"]["watch/brevity"] - 0.3
    rows = [row for row in lines(hacked_run) if any(key.startswith("alarm/") for key in row)]
    assert [row["step"] for row in rows] == [5, 10]
    assert rows[-1]["alarm/brevity"] == 1.0
    assert {row["alarm/length"] for row in rows} == {0.0}
    page = (hacked_run.folder / "report.html").read_text()
    assert "Alarm at step 10." in page
    assert "<h3>Watched</h3>" in page


def test_an_alarm_is_printed(lab, tmp_path, capsys):
    train(lab, tmp_path, watch=[brevity], quiet=False)
    output = " ".join(capsys.readouterr().err.split())
    assert output.count("alarm: since the first evaluation the trained reward rose by") >= 2
    assert "the watched 'brevity' fell by" in output


def test_samples_have_watched_values_besides_rewards(hacked_run):
    for sample in lines(hacked_run, "samples/after.jsonl"):
        size = len(sample["completion"])
        assert sample["watched"] == {"length": size, "brevity": -size}
        assert sample["total"] == pytest.approx(sample["rewards"]["ones"])
        assert set(sample["rewards"]) == {"ones"}
    samples = [s for s in lines(hacked_run, "samples/after.jsonl") if not s["greedy"]]
    mean = sum(s["watched"]["length"] for s in samples) / len(samples)
    assert hacked_run.after["watch/length"] == pytest.approx(mean)
    assert hacked_run.after["reward"] == pytest.approx(hacked_run.after["rewards/ones"])


def test_watched_rewards_do_not_change_training(hacked_run, lab, tmp_path):
    unwatched = train(lab, tmp_path)
    assert unwatched.policy.table.equal(hacked_run.policy.table)
    assert unwatched.alarms == {}
    assert not any("alarm/" in key or "watch/" in key for row in lines(unwatched) for key in row)


def test_a_resumed_run_compares_with_its_first_evaluation(hacked_run, lab, tmp_path):
    train(lab, tmp_path, watch=[length, brevity], settings={"steps": 5})
    resumed = train(lab, tmp_path, watch=[length, brevity], resume=True)
    assert resumed.alarms == hacked_run.alarms


def by_step(completions, trainer_state):
    """A check that passes most often after 5 steps."""
    level = {0: 0.3, 5: 0.7}.get(trainer_state.global_step, 0.35)
    return [level + 0.01 * (number % 3) for number in range(len(completions))]


def steps_done(completions, trainer_state):
    return [float(trainer_state.global_step + number % 2) for number in range(len(completions))]


@pytest.mark.parametrize("cut", [5, 7])
@pytest.mark.slow(after=1)
def test_a_fall_since_the_best_evaluation_is_an_alarm_also_in_a_resumed_run(lab, tmp_path, cut):
    """A run that ended after 5 steps had its evaluation there after its last checkpoint."""
    sections = {"watch": [by_step], "rewards": [steps_done]}
    through = train(lab, tmp_path / "through", **sections)
    alarm = through.alarms["by_step"]
    assert alarm.since == 5
    assert alarm.watched.mean == pytest.approx(-0.35, abs=0.01)
    logged = [row["alarm_since/by_step"] for row in lines(through) if "alarm_since/by_step" in row]
    assert logged == [5]
    page = (through.folder / "report.html").read_text()
    assert "had worsened since its best evaluation, at step 5 (" in page
    train(lab, tmp_path / "cut", settings={"steps": cut, "checkpoint_every": 5}, **sections)
    resumed = train(lab, tmp_path / "cut", resume=True, **sections)
    assert resumed.alarms == through.alarms


def test_accuracy_may_be_a_watched_reward(lab, tmp_path, capsys):
    result = train(
        lab,
        tmp_path,
        watch=[length],
        evaluation={"accuracy": "length", "threshold": 5},
        quiet=False,
    )
    samples = [s for s in lines(result, "samples/after.jsonl") if not s["greedy"]]
    right = sum(len(s["completion"]) >= 5 for s in samples) / len(samples)
    assert result.after["accuracy"] == pytest.approx(right)
    steps = [row for row in lines(result) if "reward" in row]
    assert steps
    assert not any("accuracy" in row for row in steps)  # it is measured in evaluations
    lines_of_last_step = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("step 10/10")
    ]
    assert lines_of_last_step
    assert "reward " in lines_of_last_step[0]
    assert "accuracy" not in lines_of_last_step[0]


def test_a_failing_watched_reward_may_be_skipped(lab, tmp_path):
    def broken(completions):
        raise RuntimeError("no")

    with pytest.raises(UserError, match="reward 'broken' raised RuntimeError: no"):
        train(lab, tmp_path, watch=[broken])
    trainer = lab.trainer(
        source=lab.rows(4),
        held_out=0.9,
        evaluation={"prompts": 2},
        sections={"watch": [{"name": "broken", "on_error": "skip"}]},
        objects={("watch", 0): broken},
    )
    evaluation = trainer.evaluate()
    assert math.isnan(evaluation.metrics["watch/broken"])
    assert {sample["watched"]["broken"] for sample in evaluation.samples} == {None}


# ---- the configuration


def config(**sections):
    return {
        "policy": "toy",
        "prompts": {"name": "rows", "rows": [{"prompt": "a"}]},
        "rewards": ["mine:length"],
        **sections,
    }


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"watch": [length]}, "watch.0: another reward is named 'length'"),
        ({"watch": [{"name": brevity, "label": "length"}]}, "watch.0: another reward is named"),
        (
            {"watch": [brevity, brevity]},
            "watch.1: another reward is named 'brevity'; give this one another `l",
        ),
        (
            {"evaluation": {"accuracy": "c"}, "watch": [brevity]},
            "no reward 'c'; there are length, brevity",
        ),
        (
            {
                "evaluation": {"accuracy": "brevity"},
                "watch": [{"name": brevity, "better": "lower"}],
            },
            "evaluation.accuracy: 'brevity' has better: lower, but",
        ),
    ],
)
def test_clashing_and_unknown_labels_are_refused(lab, tmp_path, sections, message):
    with pytest.raises(UserError) as caught:
        train(lab, tmp_path, rewards=[length], **sections)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "b", "better": "more"}, "watch.0.better: expected 'higher', 'lower'"),
        ({"name": "b", "tolerance": -1}, "watch.0.tolerance: expected at least 0"),
        ({"label": "b"}, "watch.0.name: missing"),
        ({"name": "b", "deadline": 1e10}, "watch.0.deadline: expected at most 1e+09"),
    ],
)
def test_mistakes_in_the_section_are_refused(section, message):
    with pytest.raises(UserError) as caught:
        load_config(config(watch=[section]))
    assert message in str(caught.value)


def test_options_and_columns_of_watched_rewards_are_checked(lab, tmp_path, monkeypatch):
    def needs(completions, answer):
        return [0.0 for _ in completions]

    with pytest.raises(UserError, match="reward 'needs' needs the column 'answer'"):
        train(lab, tmp_path, watch=[needs])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "watched_toys.py").write_text("def short(completions): ...\n")
    with pytest.raises(UserError, match=r"watch\.0\.weight: unknown key"):
        train(lab, tmp_path, watch=[{"name": "watched_toys:short", "weight": 2.0}])


def test_check_includes_watched_rewards(tmp_path, monkeypatch):
    path = tmp_path / "run.yaml"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "checked_toys.py").write_text(
        "from groupwise import Policy\n\n\nclass Toy(Policy):\n    greedy = False\n\n\n"
        "def a(completions): ...\n\n\n"
        "def b(completions, x=1): ...\n"
    )
    text = """\
policy: checked_toys:Toy
prompts: {name: rows, held_out: 0.5, rows: [ROWS]}
rewards: [checked_toys:a]
watch:
  - name: checked_toys:b
    x: 2
evaluation: {prompts: 5, samples: 2}
""".replace("ROWS", ", ".join(f"{{prompt: a{number}}}" for number in range(40)))
    path.write_text(text)
    description = call("check", path).stdout
    assert "warning: watch without evaluation.every" in description
    assert ["rollouts", "per", "evaluation", "10"] in [
        line.split() for line in description.splitlines()
    ]
    checked = call("check", path, "evaluation.every=1")
    assert (checked.exit_code, "watch without" in checked.stdout) == (0, False)
    path.write_text(text.replace("checked_toys:b", "checked_toys:c"))
    assert "run.yaml, line 5: watch.0.name: " in call("check", path).stderr
