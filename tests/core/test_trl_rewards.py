"""Reward functions written for TRL, in the forms that are common in public code."""

import asyncio
import json
import math
import re
import signal
import sqlite3
from dataclasses import replace

import pytest
import torch

import groupwise
from groupwise.kit.errors import UserError
from groupwise.rewards import Reward, RewardError, RunState
from groupwise.scoring.scorer import Scorer


def values(lab, function, completions=("1", "2"), state=None, **columns):
    count = len(completions)
    rows = [{"prompt": "p", "id": 0, **{k: v[n] for k, v in columns.items()}} for n in range(count)]
    plain = lab.build(rows, [[0]] * count, group_size=1)
    scorer = Scorer([Reward(name="reward", function=function)])
    return scorer(replace(plain, completions=list(completions)), state).total.tolist()


def test_a_reward_may_limit_its_time_with_an_alarm(lab):
    """In a thread other than the main one, `except Exception` would silently return 0 for all."""

    def limited(completions, **kwargs):
        def handler(signum, frame):
            raise TimeoutError

        rewards = []
        for text in completions:
            try:
                before = signal.signal(signal.SIGALRM, handler)
                signal.alarm(5)
                rewards.append(float(eval(text)))
                signal.alarm(0)
                signal.signal(signal.SIGALRM, before)
            except Exception:
                rewards.append(0.0)
        return rewards

    assert values(lab, limited, ["1 + 1", "2 * 3"]) == [2.0, 6.0]


# ---- event loops and clients


@pytest.mark.filterwarnings("ignore:There is no current event loop")
def test_a_reward_may_use_the_event_loop_of_the_main_thread(lab):
    async def ask(text):
        await asyncio.sleep(0)
        return float(text)

    def judged(prompts, completions, **kwargs):
        loop = asyncio.get_event_loop()
        return loop.run_until_complete(asyncio.gather(*map(ask, completions)))

    def by_run(completions, **kwargs):
        async def all_of_them():
            return await asyncio.gather(*map(ask, completions))

        return asyncio.run(all_of_them())

    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    try:
        assert values(lab, judged) == [1.0, 2.0]
    finally:
        loop.close()
    assert values(lab, by_run) == [1.0, 2.0]


def test_a_reward_may_use_a_client_created_in_the_main_thread(lab):
    with sqlite3.connect(":memory:") as client:
        client.execute("create table scores (text, value)")
        client.executemany("insert into scores values (?, ?)", [("a", 0.5), ("b", 0.25)])

        def looked_up(completions, **kwargs):
            query = "select value from scores where text = ?"
            return [client.execute(query, [text]).fetchone()[0] for text in completions]

        assert values(lab, looked_up, ["a", "b"]) == [0.5, 0.25]
    client.close()


def test_math_verify_works_with_its_default_time_limits(lab):
    """Its limits of time are alarms."""
    math_verify = pytest.importorskip("math_verify")

    def accuracy(completions, solution, **kwargs):
        rewards = []
        for text, gold in zip(completions, solution, strict=True):
            parsed = math_verify.parse(gold)
            rewards.append(float(math_verify.verify(parsed, math_verify.parse(text))))
        return rewards

    texts = [r"so $\boxed{\frac{1}{2}}$", r"$\boxed{3}$"]
    assert values(lab, accuracy, texts, solution=["$0.5$", "$4$"]) == [1.0, 0.0]


# ---- return values and the state of the trainer


def test_a_reward_may_be_a_generator(lab):
    def yields(completions, **kwargs):
        for text in completions:
            yield float(text)

    assert values(lab, yields) == [1.0, 2.0]


def test_a_reward_receives_the_state_of_the_trainer(lab):
    def curriculum(completions, trainer_state, **kwargs):
        assert trainer_state.is_world_process_zero
        assert trainer_state.log_history == []
        assert trainer_state.best_metric is None
        share = trainer_state.global_step / trainer_state.max_steps
        return [share + trainer_state.epoch + trainer_state.num_train_epochs] * len(completions)

    state = RunState(global_step=2, max_steps=4, epoch=0.25)
    assert values(lab, curriculum, state=state) == [0.75, 0.75]


def test_the_state_has_the_fields_of_transformers(lab):
    callbacks = pytest.importorskip("transformers.trainer_callback")
    expected, fields = vars(callbacks.TrainerState()), vars(RunState())
    assert expected.keys() - fields.keys() == {"stateful_callbacks"}
    assert {name: expected[name] for name in fields} == fields


# ---- whole runs


def run(lab, folder, **sections):
    defaults = {
        "policy": lab.Tabular(),
        "prompts": {"name": "rows", "rows": lab.rows(8), "held_out": 0.5},
        "train": {"steps": 3, "groups_per_step": 2, "learning_rate": 0.1},
        "output": folder / "run",
    }
    return groupwise.train(**defaults | sections)


def test_a_reward_may_log_an_accuracy_and_return_nan(lab, tmp_path, capsys):
    def accuracy_reward(completions, log_metric, **kwargs):
        rewards = [math.nan if "1" not in text else float(len(text) > 2) for text in completions]
        log_metric("accuracy", torch.tensor(rewards).nanmean())
        log_metric("reward", 7)
        return rewards

    result = run(lab, tmp_path, rewards=[accuracy_reward])
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "loss" in row]
    assert len(steps) == 3
    assert all(row["accuracy_reward/reward"] == 7 != row["reward"] for row in steps)
    assert "accuracy_reward/accuracy" in steps[0]
    assert (result.folder / "report.html").stat().st_size > 1000

    counts = [row.get("failed/accuracy_reward", 0) for row in steps]
    assert sum(counts) == sum(row["failed"] for row in steps) > 0
    text = " ".join(re.sub(r"\s+", " ", capsys.readouterr().err).split())
    assert text.count("reward 'accuracy_reward' returned NaN") == 1


def test_a_reward_that_hangs_is_named_and_the_last_step_is_saved(lab, tmp_path, capsys):
    def hangs(completions, trainer_state):
        while trainer_state.global_step == 2:
            pass
        return [float(len(text)) for text in completions]

    rewards = [{"name": hangs, "deadline": 0.2}]
    with pytest.raises(RewardError, match=r"'hangs' did not answer within 0.2 s"):
        run(lab, tmp_path, rewards=rewards)
    assert "step 2 is saved" in " ".join(capsys.readouterr().err.split())


def test_a_deadline_with_skip_needs_an_async_or_isolated_reward(lab, tmp_path):
    async def waits(completions):
        return [1.0] * len(completions)

    def plain(completions):
        return [1.0] * len(completions)

    limits = {"deadline": 5, "on_error": "skip"}
    message = r"rewards\.0\.deadline: .*plain.*set `isolate: true`, or leave `deadline` out"
    with pytest.raises(UserError, match=message):
        run(lab, tmp_path, rewards=[{"name": plain, **limits}])
    run(lab, tmp_path, rewards=[{"name": waits, **limits}], train={"steps": 0}, quiet=True)
    skips = [{"name": plain, "on_error": "skip"}]
    result = run(lab, tmp_path, rewards=skips, train={"steps": 0}, quiet=True, overwrite=True)
    # The written configuration has no deadline if none was set.
    written = result.folder / "config.yaml"
    again = {"policy": lab.Tabular(), "rewards": skips, "output": str(tmp_path / "again")}
    groupwise.train(written, **again, quiet=True)
