"""Scorer: TRL's convention, order, limits, and that no failure becomes a 0."""

import asyncio
import functools
import math
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from groupwise.advantages import group_relative
from groupwise.errors import UserError
from groupwise.rewards import Reward, RewardError, RunState, SampleErrors, Scores
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.teaching import teach
from groupwise.scoring.watchdog import _Watchdog, watched
from groupwise.training.step_metrics import with_round

TEXTS = ["alpha", "beta", "gamma", "delta"]


@pytest.fixture
def rollouts(lab):
    rows = [
        {"prompt": f"question {n // 2}", "id": 0, "answer": n // 2, "level": "easy"}
        for n in range(4)
    ]
    plain = lab.build(rows, [[1, 0], [2, 0], [1, 1, 0], [0]], group_size=2)
    return replace(plain, completions=TEXTS, facts={"completion_ids": [[1], [2], [3], [4]]})


def score(rollouts, *functions, state=None, **options):
    rewards = [
        Reward(name=f"reward {n}", function=function, **options)
        for n, function in enumerate(functions)
    ]
    return Scorer(rewards)(rollouts, state)


def lengths(completions, **kwargs):
    return [float(len(text)) for text in completions]


# ---- the convention


def test_what_a_reward_that_takes_everything_gets(rollouts):
    seen = {}

    def reward(prompts, completions, **kwargs):
        seen.update(kwargs, prompts=prompts, completions=completions)
        return [0.0] * 4

    score(rollouts, reward, state=RunState(global_step=7, max_steps=9))
    assert seen["prompts"] == ["question 0"] * 2 + ["question 1"] * 2
    assert seen["completions"] == TEXTS
    assert isinstance(seen["completions"], list)
    assert seen["completion_ids"] == [[1], [2], [3], [4]]
    assert seen["answer"] == [0, 0, 1, 1]
    assert seen["level"] == ["easy"] * 4
    assert (seen["trainer_state"].global_step, seen["trainer_state"].max_steps) == (7, 9)
    assert callable(seen["log_extra"])
    assert callable(seen["log_metric"])
    assert "prompt" not in seen


def test_a_reward_gets_only_what_it_names(rollouts):
    def reward(completions, answer):
        return [float(a) for a in answer]

    def plain(prompts, completions):
        return [float(len(p) + len(c)) for p, c in zip(prompts, completions, strict=True)]

    scores = score(rollouts, reward, plain)
    assert scores.column("reward 0").tolist() == [0.0, 0.0, 1.0, 1.0]
    assert scores.column("reward 1").tolist() == [15.0, 14.0, 15.0, 15.0]


def test_a_row_without_a_column_has_none_there(rollouts):
    prompts = [dict(row) for row in rollouts.prompts]
    del prompts[1]["answer"]
    seen = []
    score(
        replace(rollouts, prompts=prompts),
        lambda completions, answer, **_: seen.extend(answer) or [0.0] * 4,
    )
    assert seen == [0, None, 1, 1]


def test_async_objects_and_partials(rollouts):
    async def asynchronous(completions, **kwargs):
        await asyncio.sleep(0)
        return [1.0] * len(completions)

    class Judge:
        def __call__(self, completions, **kwargs):
            return [2.0] * len(completions)

    class AsyncJudge:
        async def __call__(self, completions, answer):
            return [3.0 + a for a in answer]

    def scaled(completions, factor, **kwargs):
        return [factor * len(text) for text in completions]

    scores = score(
        rollouts,
        asynchronous,
        Judge(),
        AsyncJudge(),
        functools.partial(scaled, factor=2),
        functools.partial(asynchronous),
    )
    assert scores.values[2].tolist() == [1.0, 2.0, 4.0, 10.0, 1.0]
    assert scores.values.dtype == torch.float64


def test_async_clients_may_be_kept_between_calls(rollouts):
    loops = []

    async def reward(completions):
        loops.append(asyncio.get_running_loop())
        return [0.0] * 4

    rewards = Scorer([Reward(name="kept", function=reward)])
    rewards(rollouts)
    rewards(rollouts)
    assert loops[0] is loops[1]


@pytest.mark.parametrize(
    "returned",
    [
        [1, 2.0, True, 0.5],
        (1, 2.0, 1.0, 0.5),
        torch.tensor([1.0, 2.0, 1.0, 0.5]),
        np.array([1.0, 2.0, 1.0, 0.5]),
        [torch.tensor(1.0), np.float32(2.0), np.int64(1), 0.5],
        map(float, [1, 2, 1, 0.5]),
        (value for value in [1.0, 2.0, 1.0, 0.5]),
        [torch.tensor([value]) for value in (1.0, 2.0, 1.0, 0.5)],
        torch.tensor([[1.0], [2.0], [1.0], [0.5]]),
        {"a": 1.0, "b": 2.0, "c": 1.0, "d": 0.5}.values(),
    ],
)
def test_numbers_of_any_kind(rollouts, returned):
    scores = score(rollouts, lambda completions: returned)
    assert scores.total.tolist() == [1.0, 2.0, 1.0, 0.5]


def test_nan_is_none_and_is_counted(rollouts):
    scores = score(rollouts, lambda completions: [math.nan, 2.0, None, np.float64("nan")], lengths)
    assert scores.column("reward 0").isnan().tolist() == [True, False, True, True]
    assert not scores.failed.any()
    assert scores.total.tolist() == [5.0, 6.0, 5.0, 5.0]
    assert scores.undefined == {"reward 0": 2}


def test_message_completions(rollouts):
    messages = [[{"role": "assistant", "content": text}] for text in TEXTS]

    def reward(completions, **kwargs):
        return [float(len(completion[0]["content"])) for completion in completions]

    scores = score(replace(rollouts, completions=messages), reward)
    assert scores.total.tolist() == [5.0, 4.0, 5.0, 5.0]


def test_log_extra_and_log_metric(rollouts):
    def reward(completions, log_extra, log_metric, **kwargs):
        log_extra("letters", [text[0] for text in completions])
        log_metric("longest", 5.0)
        return [0.0] * 4

    scores = score(rollouts, reward)
    assert scores.extra == {"letters": ["a", "b", "g", "d"]}
    assert scores.metrics == {"reward 0/longest": 5.0}


def test_what_is_logged_of_completions_is_a_value_for_each(rollouts):
    def series(completions, log_extra):
        log_extra("tensor", torch.arange(4))
        log_extra("generator", (text[0] for text in completions))
        return [0.0] * 4

    extra = {"tensor": [0, 1, 2, 3], "generator": ["a", "b", "g", "d"]}
    assert score(rollouts, series).extra == extra
    for values, count in (([1.0], "1"), (3, "int"), ("text", "str")):

        def other(completions, log_extra, values=values):
            log_extra("odd", values)
            return [0.0] * 4

        with pytest.raises(
            RewardError, match=f"log_extra: 'odd' needs 4 values, .* received {count}"
        ):
            score(rollouts, other)


def test_what_is_logged_stands_under_the_rewards_name(rollouts):
    """So that TRL's own example, which logs `accuracy`, hides nothing; of several, the mean."""

    def reward(completions, log_metric):
        for value in (0.25, torch.tensor(0.75)):
            log_metric("accuracy", value)
        log_metric("step", 1)
        return [0.0] * 4

    logged = {"reward 0/accuracy": 0.5, "reward 0/step": 1.0}
    assert score(rollouts, reward).metrics == logged
    with pytest.raises(UserError, match=r"cannot be named 'time'.*`time/\.\.\.`.*label"):
        Scorer([Reward(name="time", function=reward)])


def test_weights_and_none(rollouts):
    """None: the others are the whole reward; None of all: no reward, which is not 0."""
    rewards = Scorer(
        [
            Reward(name="a", function=lambda completions: [1.0, None, None, 2.0], weight=2.0),
            Reward(name="b", function=lambda completions: [1.0, 4.0, None, -1.0], weight=0.5),
        ]
    )
    scores = rewards(rollouts)
    assert scores.total.tolist()[:2] == [2.5, 2.0]
    assert math.isnan(scores.total[2])
    assert float(scores.total[3]) == 3.5
    assert not scores.failed.any()
    assert scores.column("a").isnan().tolist() == [False, True, True, False]


# ---- one after the other, and at once


def test_plain_rewards_run_in_the_main_thread_and_async_ones_meanwhile(rollouts):
    order = []

    def plain(completions):
        order.append(threading.current_thread())
        time.sleep(0.1)
        return [1.0] * 4

    async def waits(completions):
        order.append(threading.current_thread())
        await asyncio.sleep(0.3)
        return [1.0] * 4

    started = time.monotonic()
    scores = score(rollouts, plain, waits, waits, plain)
    assert time.monotonic() - started < 0.45
    assert order.count(threading.main_thread()) == 2
    seconds = list(scores.seconds.values())
    assert all(0.1 <= plain < 0.2 for plain in seconds[::3])
    assert all(0.29 < waited < 0.45 for waited in seconds[1:3])


def test_after_one_that_fails_no_other_is_called(rollouts):
    called = []

    def fails(completions):
        raise LookupError

    def takes_long(completions):
        called.append(True)
        return [0.0] * 4

    with pytest.raises(RewardError, match="'reward 0' raised LookupError"):
        score(rollouts, fails, takes_long)
    assert not called


def test_nothing_is_left_of_what_was_closed(rollouts):
    async def waits(completions):
        return await asyncio.to_thread(lambda: [1.0] * 4)

    before = set(threading.enumerate())
    rewards = Scorer([Reward(name="waits", function=waits)])
    rewards(rollouts)
    left = set(threading.enumerate()) - before
    assert left
    rewards.close()
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)
    assert rewards(rollouts).total.tolist() == [1.0] * 4
    rewards.close()


def test_rewards_cannot_spoil_each_others_lists(rollouts):
    def vandal(prompts, completions, answer, completion_ids):
        for column in (prompts, completions, answer, completion_ids):
            column.clear()
        return [0.0] * 4

    def careful(prompts, completions, answer, completion_ids):
        return [float(len(x)) for x in (prompts, completions, answer, completion_ids)]

    scores = score(rollouts, vandal, careful)
    assert scores.column("reward 1").tolist() == [4.0] * 4
    assert rollouts.completions == TEXTS


def test_no_gradient_is_recorded(rollouts):
    weight = torch.ones((), requires_grad=True)
    scores = score(rollouts, lambda completions: weight * torch.ones(4))
    assert scores.total.tolist() == [1.0] * 4


# ---- failures


def at(row, name="reward 0"):
    return rf"(?s)reward '{name}' .*at sample {row} of 4.*question {row // 2}.*{TEXTS[row]}"


def test_a_raise_names_reward_and_sample(rollouts):
    def reward(completions, **kwargs):
        return [1.0 / (len(text) - 5 if text == "gamma" else 1.0) for text in completions]

    with pytest.raises(RewardError, match=at(2)) as caught:
        score(rollouts, reward)
    assert "ZeroDivisionError" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_async_raise_names_reward_and_sample(rollouts):
    async def reward(completions):
        for text in completions:
            await asyncio.sleep(0)
            if text == "beta":
                raise KeyError("beta")

    with pytest.raises(RewardError, match=at(1)):
        score(rollouts, reward)


@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("bad", [math.inf, 10**400, "0.5", "right", {1.0}, {}, object()])
def test_a_value_that_is_no_number_is_named(rollouts, row, bad):
    returned = [1.0] * 4
    returned[row] = bad
    with pytest.raises(RewardError, match=at(row)) as caught:
        score(rollouts, lambda completions: returned)
    assert "returned" in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ([1.0] * 3, "returned 3 values for 4 completions"),
        ([], "returned 0 values for 4"),
        (None, "returned NoneType instead of a list of 4 numbers"),
        (1.0, "returned float instead"),
        ("1234", "returned str instead"),
        ({0: 1.0}, "returned dict instead"),
        ({1.0, 2.0, 3.0, 4.0}, "returned set instead"),
        ((x for x in [1.0] * 3), "returned 3 values for 4"),
        (np.float64(3.0), "returned float instead"),
    ],
)
def test_a_wrong_answer_is_named(rollouts, returned, told):
    with pytest.raises(RewardError, match=rf"(?s)reward 'reward 0' {told}.*sample"):
        score(rollouts, lambda completions: returned)


def test_the_failing_reward_of_several_is_named(rollouts):
    with pytest.raises(RewardError, match="'reward 1' returned 1 values"):
        score(rollouts, lengths, lambda completions: [1.0], lengths)


def test_a_hang_is_ended_and_names_the_sample(rollouts):
    let_go = threading.Event()

    def hanging(completions):
        for text in completions:
            if text == "gamma":
                let_go.wait(20)
        return [0.0] * 4

    async def hanging_too(completions):
        for text in completions:
            if text == "delta":
                await asyncio.sleep(20)

    started = time.monotonic()
    try:
        with pytest.raises(RewardError, match=at(2)) as caught:
            score(rollouts, hanging, deadline=0.2)
        assert "did not answer within 0.2 s" in str(caught.value)
    finally:
        let_go.set()
    with pytest.raises(RewardError, match=at(3)):
        score(rollouts, hanging_too, deadline=0.2)
    assert time.monotonic() - started < 2


def test_a_plain_reward_that_hangs_stops_the_run_whatever_it_catches(rollouts):
    """`skip` is for what can be ended: here anything may have been left half done."""

    def takes_everything_for_wrong(completions):
        try:
            time.sleep(20)
        except:  # noqa: E722 - as such rewards do
            return [0.0] * 4

    def sleeps(completions):
        try:
            time.sleep(20)
        except Exception:
            return [0.0] * 4

    def computes(completions):
        while True:
            pass

    def calls_back(completions):
        async def waits():
            asyncio.get_running_loop().call_soon(time.sleep, 20)
            await asyncio.sleep(20)

        asyncio.run(waits())

    for reward in (takes_everything_for_wrong, sleeps, computes, calls_back):
        with pytest.raises(RewardError, match=r"(?s)within 0.1 s.*`isolate: true`"):
            score(rollouts, reward, deadline=0.1, on_error="skip")
    assert score(rollouts, lengths).total.tolist() == [5.0, 4.0, 5.0, 5.0]


def test_an_async_reward_that_hangs_is_skipped(rollouts):
    async def hangs(completions):
        await asyncio.sleep(20)

    scores = score(rollouts, hangs, deadline=0.1, on_error="skip")
    assert scores.failed.all()


def test_who_keeps_the_event_loop_busy_is_named_and_another_loop_goes_on(rollouts):
    async def blocks(completions):
        if completions[0] == "alpha":
            time.sleep(2.5)
        return [1.0] * 4

    async def waits(completions):
        await asyncio.sleep(0.01)
        return [1.0] * 4

    rewards = Scorer(
        [
            Reward(name="innocent", function=waits, deadline=0.1, on_error="skip"),
            Reward(name="guilty", function=blocks, deadline=0.1),
        ]
    )
    with pytest.raises(RewardError, match=r"'guilty' .*; reward 'guilty' keeps the event loop"):
        rewards(rollouts)
    other = replace(rollouts, completions=TEXTS[::-1])
    assert rewards(other).total.tolist() == [2.0] * 4


def test_signals_and_alarms_of_a_reward_are_its_own(rollouts):
    def mine(number, frame):
        raise LookupError

    def reward(completions):
        signal.signal(signal.SIGALRM, mine)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            time.sleep(20)
        except LookupError:
            return [3.0] * 4

    before = signal.getsignal(signal.SIGALRM)
    try:
        assert score(rollouts, reward, deadline=5).total.tolist() == [3.0] * 4
        assert signal.getsignal(signal.SIGALRM) is mine
    finally:
        signal.signal(signal.SIGALRM, before)

    def interrupted(completions):
        signal.raise_signal(signal.SIGINT)

    # What is started in the background may ignore it.
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            score(rollouts, interrupted)
    finally:
        signal.signal(signal.SIGINT, ctrl_c)


# It cannot be interrupted: it takes all exceptions; and: it does not let other threads run.
STUBBORN = """
while True:
    try:
        __import__("time").sleep(60)
    except BaseException:
        pass
"""
GREEDY = "7 ** 10 ** 9"


def test_what_cannot_be_interrupted_ends_the_process_and_is_named():
    program = (
        "from groupwise.scoring import watchdog\n"
        "watchdog.GRACE = 0.3\n"
        "def reward(): exec({!r})\n"
        "watchdog.watched(reward, who=\"reward 'stubborn'\", deadline=0.2)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(code)], stderr=subprocess.PIPE, text=True
        )
        for code in (STUBBORN, GREEDY)
    ]
    told, traced = (process.communicate(timeout=60)[1] for process in started)
    assert [process.returncode for process in started] == [1, 1]
    assert "reward 'stubborn' did not answer within 0.2 s and cannot be interrupted" in told
    assert "in reward" in told
    assert "its last checkpoint is intact" in told
    assert "in reward" in traced


def test_a_reward_of_a_timeout_of_its_own_is_not_our_deadline(rollouts):
    def reward(completions):
        raise TimeoutError("the server is away")

    with pytest.raises(RewardError, match="raised TimeoutError: the server is away"):
        score(rollouts, reward)


def test_a_reward_that_exits_does_not_end_the_program(rollouts):
    def reward(completions):
        sys.exit(0)

    with pytest.raises(RewardError, match="raised SystemExit"):
        score(rollouts, reward)


def test_a_task_of_an_async_reward_that_exits_does_not_end_the_loop(rollouts):
    async def exits():
        sys.exit(3)

    async def reward(completions):
        await asyncio.gather(exits())

    with pytest.raises(RewardError, match="raised SystemExit: 3"):
        score(rollouts, reward, deadline=5)


def test_where_stderr_is_closed_calls_are_made_and_what_hangs_is_ended():
    program = (
        "import sys; from groupwise.scoring import watchdog\n"
        "watchdog.GRACE = 0.3; sys.__stderr__.close()\n"
        "print(watchdog.watched(lambda: 'answer', who='one', deadline=5), flush=True)\n"
        f"watchdog.watched(lambda: exec({STUBBORN!r}), who='another', deadline=0.2)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, timeout=60)
    assert (done.stdout, done.returncode) == (b"answer\n", 1)


def test_a_deadline_that_ends_with_the_call_is_not_the_next_ones():
    """The call ended when its watchdog had waited, and before it gave the signal."""

    class Late(threading.Event):
        def wait(self, timeout=None):
            watchdog.end()
            return timeout != 0.0

    watchdog = _Watchdog("reward", 0.0)
    watchdog._over = Late()

    def next_one():
        watchdog._watch()
        return "answer"

    assert watched(next_one, who="another", deadline=5) == "answer"
    assert not watchdog.is_overdue


def test_long_completions_are_shortened_in_messages(rollouts):
    long = replace(rollouts, completions=["x" * 10_000] * 4)
    with pytest.raises(RewardError) as caught:
        score(long, lambda completions: [])
    assert len(str(caught.value)) < 1000


# ---- on_error: skip


def fails_at(*rows, values=None):
    def reward(completions):
        given = list(values or [1.0, 2.0, 3.0, 4.0])
        raise SampleErrors(given, dict.fromkeys(rows, "could not be parsed"))

    return reward


def test_sample_errors_stop_and_name_the_first(rollouts):
    with pytest.raises(RewardError, match=at(1)) as caught:
        score(rollouts, fails_at(1, 3))
    assert "could not be parsed" in str(caught.value)
    assert "(2 samples failed)" in str(caught.value)


def test_skipped_samples_are_left_out_and_never_zero(rollouts):
    """Two rewards, one of which fails on a sample: its total is missing, not smaller."""
    rewards = Scorer(
        [
            Reward(name="fails", function=fails_at(1), on_error="skip"),
            Reward(name="works", function=lambda completions: [10.0] * 4),
        ]
    )
    scores = rewards(rollouts)
    assert scores.failed.tolist() == [False, True, False, False]
    assert scores.total[[0, 2, 3]].tolist() == [11.0, 13.0, 14.0]
    assert math.isnan(scores.total[1])
    relative = group_relative(scores.total, rollouts.groups, scale="none")
    assert relative.tolist() == [0.0, 0.0, -0.5, 0.5]


@pytest.mark.parametrize(
    "reward",
    [
        lambda completions: 1 / 0,
        lambda completions: [1.0] * 3,
        lambda completions: None,
        fails_at(0, 1, 2, 3),
        fails_at(0, values=[1.0]),
        fails_at(9),
    ],
)
def test_a_whole_call_that_fails_is_skipped_whole(rollouts, reward):
    scores = score(rollouts, reward, on_error="skip")
    assert scores.failed.all()
    assert scores.total.isnan().all()


def test_only_the_bad_values_are_skipped(rollouts):
    scores = score(rollouts, lambda completions: [1.0, math.inf, None, "x"], on_error="skip")
    assert scores.failed.tolist() == [False, True, False, True]
    assert scores.total.isnan().tolist() == [False, True, True, True]
    mixed = score(rollouts, fails_at(0, values=[None, math.inf, 3.0, None]), on_error="skip")
    assert mixed.failed.tolist() == [True, True, False, False]
    assert float(mixed.total[2]) == 3.0


def test_a_further_round_adds_to_counts_and_seconds_alone():
    first = {"reward": 1.0, "unscored": 2, "reward_time/a": 0.5}
    further = {"reward": 5.0, "unscored": 1, "reward_time/a": 0.25, "nan_rewards/a": 3}
    added = {"reward": 1.0, "unscored": 3, "reward_time/a": 0.75, "nan_rewards/a": 3}
    assert with_round(first, further) == added


def test_skipped_samples_train_nothing_and_are_counted(lab):
    def reward(completions, **kwargs):
        values = lab.ones(completions)
        raise SampleErrors([None, *values[1:]], {0: "broken"})

    def trained(function, on_error):
        trainer = lab.trainer(groups_per_step=1, group_size=8, microbatch=1)
        only = Scorer([Reward(name="ones", function=function, on_error=on_error)])
        trainer.experience.scorer = only
        return trainer, lab.step(trainer)

    trainer, metrics = trained(reward, "skip")
    assert metrics["failed_rewards"] == 1
    assert metrics["unscored"] == 1
    full, _ = trained(lab.ones, "stop")
    # The failed one is out of the mean, the std and the reward that is shown.
    known = lab.trainer(groups_per_step=1, group_size=8)
    scored = known.experience.next(known.state)
    rollouts, scores = scored.rollouts, scored.scores
    assert metrics["reward"] == pytest.approx(float(scores.total[1:].mean()))
    assert metrics["reward_std"] == pytest.approx(float(scores.total[1:].std()))
    assert not torch.equal(trainer.policy.table, full.policy.table)
    assert metrics["trained_decisions"] <= int(rollouts.lengths[1:].sum())


# ---- columns


def test_collisions_are_errors(rollouts):
    for column in ("completions", "trainer_state", "log_extra", "log_metric", "completion_ids"):
        prompts = [{**row, column: 1} for row in rollouts.prompts]
        with pytest.raises(UserError, match=f"column '{column}' collides"):
            score(replace(rollouts, prompts=prompts), lengths)
    bound = Reward(name="bound", function=lengths, bound=frozenset({"answer"}))
    with pytest.raises(UserError, match="'bound': the dataset's column 'answer' collides"):
        Scorer([bound])(rollouts)


def test_a_missing_column_is_named(rollouts):
    def reward(completions, solution, **kwargs):
        return [0.0] * 4

    told = "reward 'reward 0' needs the column 'solution'; the dataset has answer, id, level"
    with pytest.raises(UserError, match=re.escape(told)):
        score(rollouts, reward)

    def optional(completions, solution=None):
        return [0.0] * 4

    score(rollouts, optional)
    without = replace(rollouts, facts={})
    with pytest.raises(UserError, match="needs the column 'completion_ids'"):
        score(without, lambda completions, completion_ids: [0.0] * 4)


def test_names_must_differ_and_exist():
    with pytest.raises(UserError, match="at least one reward"):
        Scorer([])
    twice = [Reward(name="same", function=lengths)] * 2
    with pytest.raises(UserError, match=r"two rewards are named 'same'.*label"):
        Scorer(twice)


# ---- scores


def test_scores_concat_and_select(rollouts):
    whole = score(rollouts, lengths, lengths)
    parts = [score(rollouts.select(rows), lengths, lengths) for rows in ([0, 1], [2, 3])]
    joined = Scores.concat(parts)
    assert torch.equal(joined.values, whole.values)
    assert torch.equal(whole.select(torch.tensor([3, 0])).total, whole.total[[3, 0]])


def test_rewards_that_learn_see_what_was_scored(rollouts):
    class Learns:
        def __call__(self, completions):
            return [1.0] * 4

        def refresh(self, rollouts, scores):
            self.seen = (rollouts, scores)
            return {"seen": 4.0}

    learner = Learns()
    rewards = Scorer([Reward(name="a", function=learner), Reward(name="b", function=lengths)])
    scores = rewards(rollouts)
    assert teach(rewards, None, rollouts, scores, RunState()) == {"a/seen": 4.0}
    assert learner.seen == (rollouts, scores)
