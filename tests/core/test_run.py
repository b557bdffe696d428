"""`groupwise.train` from Python: sections, objects instead of names, callbacks, resuming."""

import json
import re

import pytest
import torch

import groupwise
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise.rewards import RewardError
from groupwise.storage.samples import read_samples


def train(lab, folder, **options):
    train_section = {"steps": 4, "groups_per_step": 4, "learning_rate": 0.1}
    defaults = {
        "policy": lab.Tabular(),
        "prompts": {"name": "rows", "rows": lab.rows(8), "held_out": 0.5},
        "rewards": lab.ones,
        "train": {**train_section, **options.pop("settings", {})},
        "output": folder / "run",
        "quiet": True,
    }
    return groupwise.train(**defaults | options)


def test_a_section_in_python_overrides_that_of_the_file(lab, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "policy: {name: nowhere:Policy, size: 3}\n"
        f"prompts: {{name: rows, rows: {json.dumps(lab.rows(8))}, held_out: 0.5}}\n"
        "rewards: [nowhere:reward]\n"
        "algorithm: {name: dapo, beta: 0.25, clip_high: 0.5}\n"
        "train: {steps: 9, learning_rate: 0.125, group_size: 4}\n"
        f"output: {tmp_path / 'run'}\n"
    )
    arguments = {"policy": lab.Tabular(), "rewards": lab.ones, "quiet": True}
    result = groupwise.train(file, train={"steps": 2}, algorithm={"clip_high": 0.75}, **arguments)
    saved = (result.folder / "config.yaml").read_text()
    assert result.steps == 2
    for line in ("learning_rate: 0.125", "group_size: 4", "beta: 0.25", "clip_high: 0.75"):
        assert line in saved, saved
    # An option of the policy that was replaced.
    assert "size: 3" not in saved.replace("group_size", "")
    other = {"algorithm": {"name": "dr_grpo"}, "overwrite": True}
    groupwise.train(file, train={"steps": 1}, **other, **arguments)
    assert "clip_high" not in (result.folder / "config.yaml").read_text()


def test_rows_in_python_may_be_for_the_evaluation_only(lab, tmp_path):
    scored_prompts = []

    def reward(prompts, completions):
        scored_prompts.extend(prompts)
        return [0.0] * len(completions)

    rows = lab.rows(8)
    train(
        lab,
        tmp_path,
        prompts=rows[:4],
        rewards=reward,
        settings={"steps": 0},
        evaluation={"source": rows[4:], "prompts": 4},
    )
    assert set(scored_prompts) == {row["prompt"] for row in rows[4:]}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (lambda lab: {"policy": lab.Tabular}, "policy: expected a groupwise.Pol.* an instance"),
        (lambda lab: {"policy": torch.nn.Linear(1, 1)}, "policy: .*Policy, found Linear"),
        (lambda lab: {"algorithm": GRPO}, "algorithm: .* the class GRPO itself"),
        (lambda lab: {"algorithm": lab.Tabular()}, "algorithm: .*Algorithm, found Tabular"),
        (lambda lab: {"callbacks": [groupwise.Callback]}, "callbacks.0: .* an instance"),
        (lambda lab: {"callbacks": print}, "callbacks.0: .*Callback, found builtin_function"),
        (lambda lab: {"rewards": [1.0]}, "rewards.0: expected a callable, found float"),
        (lambda lab: {"prompts": 5}, "prompts: expected rows, .* found int"),
    ],
)
def test_objects_of_a_wrong_type_are_refused(lab, tmp_path, section, message):
    with pytest.raises(UserError, match=message):
        train(lab, tmp_path, **section(lab))


def test_a_run_without_held_out_prompts_prints_a_note(lab, tmp_path, capsys):
    everything = {"name": "rows", "rows": lab.rows(2), "held_out": 0.0}
    train(lab, tmp_path, prompts=everything, quiet=False)
    assert "no prompts are held out, so there is no evaluation" in capsys.readouterr().err


class Watcher(groupwise.Callback):
    def __init__(self):
        self.evaluations = []

    def on_evaluation(self, step, evaluation):
        self.evaluations.append((step, len(evaluation.samples), evaluation.metrics["reward"]))


def test_callbacks_receive_every_evaluation_once(lab, tmp_path):
    watcher = Watcher()
    evaluation = {"prompts": 2, "samples": 3, "every": 2, "greedy": False}
    result = train(lab, tmp_path, callbacks=watcher, evaluation=evaluation)
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    rewards = [json.loads(line).get("evaluation/reward") for line in lines]
    assert [(step, count) for step, count, _ in watcher.evaluations] == [(0, 6), (2, 6), (4, 6)]
    assert len(list((result.folder / "samples").glob("after.jsonl"))) == 1
    assert [r for r in rewards if r is not None] == pytest.approx(
        [reward for *_, reward in watcher.evaluations], abs=1e-5
    )


def rates(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["learning_rate"] for line in lines if "learning_rate" in line]


def test_a_resumed_run_says_where_the_learning_rate_jumps(lab, tmp_path, capsys):
    cosine = {"schedule": "cosine", "steps": 4}
    result = train(lab, tmp_path, settings=cosine)
    train(lab, tmp_path, settings={**cosine, "steps": 8}, resume=True, quiet=False)
    output = " ".join(capsys.readouterr().err.split())
    assert (
        "note: the learning rate goes from 0.0146 in step 4 to 0.05 in step 5: as planned before, "
        "it would be 0. Its schedule is as long as train.steps and train.minutes say; to plan a "
        "longer run from its start, set train.schedule_steps"
    ) in output
    assert rates(result.folder)[3:5] == pytest.approx([0.0146447, 0.05])


def test_a_run_says_that_its_minutes_ended_it(lab, tmp_path, capsys):
    train(lab, tmp_path, settings={"steps": 10**6, "minutes": 0.01}, quiet=False)
    output = " ".join(capsys.readouterr().err.split())
    assert re.search(r"\d+ steps? of 1,000,000 \(train\.minutes: 0\.01\) in \d+ s", output)


def test_a_schedule_of_its_own_length_goes_on_where_the_run_ended(lab, tmp_path, capsys):
    planned = {"schedule": "cosine", "steps": 4, "schedule_steps": 8}
    train(lab, tmp_path / "two", settings=planned)
    two = train(lab, tmp_path / "two", settings={**planned, "steps": 8}, resume=True, quiet=False)
    assert "the learning rate goes" not in capsys.readouterr().err
    one = train(lab, tmp_path / "one", settings={"schedule": "cosine", "steps": 8})

    assert rates(one.folder) == rates(two.folder)
    assert len(rates(two.folder)) == 8


def test_a_resumed_run_prints_what_changed_in_its_configuration(lab, tmp_path, capsys):
    first = train(lab, tmp_path)
    (state,) = (first.folder / "checkpoints").glob("*/state.json")
    before = json.loads(state.read_text())["seconds"]
    resumed = {"resume": True, "quiet": False}
    algorithm = {"name": "grpo", "beta": 0.5}
    second = train(lab, tmp_path, settings={"steps": 6}, algorithm=algorithm, **resumed)
    output = capsys.readouterr().err
    assert "note: resumed with train.steps: 4 -> 6" in output
    assert "note: resumed with algorithm.beta: unset -> 0.5" in output
    assert "learning_rate" not in output
    assert "steps: 6" in (second.folder / "config.yaml").read_text()
    assert second.steps == 6
    assert 0 < before < first.seconds
    assert second.seconds > before
    assert "steps: 4" in (second.folder / "config.until_step_4.yaml").read_text()
    with pytest.raises(
        UserError, match="seed: a run must be resumed and evaluated with its own value, 0, found 7"
    ):
        train(lab, tmp_path, seed=7, **resumed)
    rows = {"name": "rows", "rows": lab.rows(8), "held_out": 0.9}
    with pytest.raises(
        UserError,
        match=r"held_out: a run must be resumed and evaluated with its own value, 0.5, found 0.9",
    ):
        train(lab, tmp_path, prompts=rows, **resumed)
    (second.folder / "config.yaml").write_text("")
    with pytest.raises(UserError, match=r"config\.yaml is damaged: it holds no sections"):
        train(lab, tmp_path, settings={"steps": 7}, **resumed)
    (second.folder / "config.yaml").unlink()
    assert train(lab, tmp_path, settings={"steps": 7}, **resumed).steps == 7


def test_functions_of_the_same_name_need_labels(lab, tmp_path):
    def named(value):
        def reward(completions, bonus=0.0):
            return [value + bonus + len(text) for text in completions]

        return reward

    with pytest.raises(UserError, match=r'two rewards are named .*"label": ...}` with the func'):
        train(lab, tmp_path, rewards=[named(1.0), named(2.0)])
    sections = [
        {"name": named(1.0), "label": "one", "weight": 0.5},
        {"name": named(2.0), "label": "two", "bonus": 4.0},
        named(3.0),
    ]
    after = train(lab, tmp_path, rewards=sections).after
    assert after["rewards/two"] - after["rewards/one"] == pytest.approx(5.0)
    assert after["rewards/reward"] - after["rewards/one"] == pytest.approx(2.0)
    total = 0.5 * after["rewards/one"] + after["rewards/two"] + after["rewards/reward"]
    assert after["reward"] == pytest.approx(total)
    misspelt = {"name": named(1.0), "bonnus": 1.0}
    with pytest.raises(UserError, match="did you mean 'bonus'"):
        train(lab, tmp_path, rewards=[misspelt], overwrite=True)


def test_a_run_without_variance_warns_once(lab, tmp_path, capsys):
    def same(completions):
        return [0.25] * len(completions)

    train(lab, tmp_path, rewards=same, settings={"steps": 14}, quiet=False)
    output = capsys.readouterr().err.replace("\n", " ")
    assert output.count("step 10: warning: in the last 10 steps all completions of every") == 1
    assert output.count("nothing was learned") == 1


def test_a_reward_loads_its_model_once_before_the_run(lab, tmp_path):
    class Model:
        loaded = 0

        def load(self):
            self.loaded += 1

        def __call__(self, completions, **columns):
            assert self.loaded == 1
            return [float(len(text)) for text in completions]

    model = Model()
    train(lab, tmp_path, rewards=model)
    assert model.loaded == 1

    class Missing(Model):
        def load(self):
            raise ValueError("no such model")

    with pytest.raises(UserError, match="reward 'Missing': no such model"):
        train(lab, tmp_path, rewards=Missing(), overwrite=True)


def test_rewards_may_log_metrics_of_any_name(lab, tmp_path):
    """Logged metrics are prefixed with the name of the reward, so they never clash."""

    def logs(name, value):
        def reward(completions, log_metric):
            log_metric(name, value)
            return [float(len(text)) for text in completions]

        return reward

    for name in ("mine", "loss", "step", "evaluation/reward"):
        logging = logs(name, torch.tensor(2.5))
        result = train(lab, tmp_path, rewards=logging, overwrite=True)
        last = json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[-2])
        assert last[f"reward/{name}"] == 2.5
        assert last["step"] == 4
    message = "reward 'reward' raised .*: log_metric: 'mine' is 'many', expected a number"
    with pytest.raises(UserError, match=message):
        train(lab, tmp_path, rewards=logs("mine", "many"), overwrite=True)


def test_an_unpaired_surrogate_in_logged_text_does_not_stop_the_run(lab, tmp_path):
    def reward(completions, log_extra):
        log_extra("read", ["cut \ud83d"] * len(completions))
        return [float(len(text)) for text in completions]

    result = train(lab, tmp_path, rewards=[reward])
    samples = read_samples(result.folder / "samples" / "after.jsonl")
    assert samples[0]["shown"]["read"] == "cut \ud83d"
    assert (result.folder / "report.html").read_text(encoding="utf-8")


def test_when_a_reward_fails_in_the_last_evaluation_the_saved_step_is_named(lab, tmp_path, capsys):
    def reward(completions, trainer_state):
        assert trainer_state.global_step < 4
        return [float(len(text)) for text in completions]

    with pytest.raises(RewardError):
        train(lab, tmp_path, rewards=[reward], quiet=False)
    text = " ".join(capsys.readouterr().err.split())
    assert "step 4 is saved; `groupwise.train(..., resume=True)` with the same arguments" in text


def test_a_metric_logged_twice_stops_the_run_after_saving_the_step(lab, tmp_path):
    class Clashing(GRPO):
        def end_step(self, weights, step):
            return {"reward": 1.0} if step == 2 else {}

    with pytest.raises(UserError, match="the metric 'reward' is logged twice"):
        train(lab, tmp_path, algorithm=Clashing())
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_2"]


def test_an_algorithm_without_groups_learns_from_one_completion_of_each_prompt(lab, tmp_path):
    policy = lab.Tabular()
    before = [weight.detach().clone() for weight in policy.parameters()]

    def twos(completions, **_):
        return [float(completion.count("2")) for completion in completions]

    settings = {"steps": 2, "groups_per_step": 4, "group_size": 1}
    result = train(
        *(lab, tmp_path),
        policy=policy,
        algorithm="reinforce_pp",
        rewards=twos,
        settings=settings,
    )
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 2
    assert any(not w.equal(b) for w, b in zip(policy.parameters(), before, strict=True))
    with pytest.raises(UserError, match=r"train.group_size: algorithm 'rloo' compares"):
        train(lab, tmp_path / "other", algorithm="rloo", settings=settings)
