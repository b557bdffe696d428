"""Scoring: the call convention of TRL, order, deadlines, and failures, which never count as 0."""

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
from tests.effort import Effort

from groupwise.advantages import group_relative
from groupwise.kit.errors import UserError
from groupwise.metrics.step_metrics import with_round
from groupwise.rewards import Reward, RewardError, RunState, SampleErrors, Scores
from groupwise.scoring import watchdog
from groupwise.scoring.scorer import Scorer

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


def test_a_reward_with_kwargs_receives_all_columns(rollouts):
    arguments = {}

    def reward(prompts, completions, **kwargs):
        arguments.update(kwargs, prompts=prompts, completions=completions)
        return [0.0] * 4

    score(rollouts, reward, state=RunState(global_step=7, max_steps=9))
    assert arguments["prompts"] == ["question 0"] * 2 + ["question 1"] * 2
    assert arguments["completions"] == TEXTS
    assert isinstance(arguments["completions"], list)
    assert arguments["completion_ids"] == [[1], [2], [3], [4]]
    assert arguments["answer"] == [0, 0, 1, 1]
    assert arguments["level"] == ["easy"] * 4
    assert (arguments["trainer_state"].global_step, arguments["trainer_state"].max_steps) == (7, 9)
    assert callable(arguments["log_extra"])
    assert callable(arguments["log_metric"])
    assert "prompt" not in arguments


def test_a_reward_receives_only_the_columns_it_names(rollouts):
    def reward(completions, answer):
        return [float(a) for a in answer]

    def plain(prompts, completions):
        return [float(len(p) + len(c)) for p, c in zip(prompts, completions, strict=True)]

    scores = score(rollouts, reward, plain)
    assert scores.column("reward 0").tolist() == [0.0, 0.0, 1.0, 1.0]
    assert scores.column("reward 1").tolist() == [15.0, 14.0, 15.0, 15.0]


def test_rewards_know_the_groups_also_where_neighbours_have_one_prompt(rollouts):
    """The same prompt drawn twice makes two groups, which rewards cannot tell by the prompts."""
    prompts = [rollouts.prompts[0]] * 4
    drawn = replace(rollouts, prompts=prompts, groups=torch.tensor([7, 7, 9, 9]))
    received = {}

    def plain(completions, groups):
        received["plain"] = groups
        return [0.0] * len(completions)

    async def waits(completions, **columns):
        received["async"] = columns["groups"]
        return [0.0] * len(completions)

    score(drawn, plain, waits)
    assert received == {"plain": [7, 7, 9, 9], "async": [7, 7, 9, 9]}
    score(drawn.select([0, 2, 3]), plain, waits)
    assert received == {"plain": [7, 9, 9], "async": [7, 9, 9]}


def test_a_missing_value_of_a_column_is_none(rollouts):
    prompts = [dict(row) for row in rollouts.prompts]
    del prompts[1]["answer"]
    answers = []
    score(
        replace(rollouts, prompts=prompts),
        lambda completions, answer, **_: answers.extend(answer) or [0.0] * 4,
    )
    assert answers == [0, None, 1, 1]


def test_rewards_may_be_async_functions_objects_and_partials(rollouts):
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


def test_all_calls_of_an_async_reward_run_in_one_event_loop(rollouts):
    loops = []

    async def reward(completions):
        loops.append(asyncio.get_running_loop())
        return [0.0] * 4

    rewards = Scorer([Reward(name="async", function=reward)])
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
def test_values_may_be_numbers_of_any_type(rollouts, returned):
    scores = score(rollouts, lambda completions: returned)
    assert scores.total.tolist() == [1.0, 2.0, 1.0, 0.5]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_nan_is_a_failed_sample_and_none_does_not_apply(rollouts, on_error):
    """Before, NaN counted as 0 in the sum of several rewards."""
    rewards = [
        Reward(
            name="nan",
            function=lambda completions: [math.nan, 2.0, None, np.float64("nan")],
            on_error=on_error,
        ),
        Reward(name="lengths", function=lengths),
    ]
    scores = Scorer(rewards)(rollouts)
    assert scores.failed.tolist() == [True, False, False, True]
    assert scores.total.isnan().tolist() == [True, False, False, True]
    assert scores.total[1:3].tolist() == [6.0, 5.0]
    assert scores.failure_counts == {"nan": 2}
    assert scores.reasons == ["reward 'nan' returned NaN", None, None, "reward 'nan' returned NaN"]
    assert scores.failures == {"nan": "reward 'nan' returned NaN, at the prompt 'question 0'"}


def test_completions_may_be_messages(rollouts):
    messages = [[{"role": "assistant", "content": text}] for text in TEXTS]

    def reward(completions, **kwargs):
        return [float(len(completion[0]["content"])) for completion in completions]

    scores = score(replace(rollouts, completions=messages), reward)
    assert scores.total.tolist() == [5.0, 4.0, 5.0, 5.0]


def test_log_extra_and_log_metric_are_in_the_scores(rollouts):
    def reward(completions, log_extra, log_metric, **kwargs):
        log_extra("letters", [text[0] for text in completions])
        log_metric("longest", 5.0)
        return [0.0] * 4

    scores = score(rollouts, reward)
    assert scores.extra == {"letters": ["a", "b", "g", "d"]}
    assert scores.metrics == {"reward 0/longest": (20.0, 4)}  # of each of four completions


def test_log_extra_needs_a_value_for_each_completion(rollouts):
    def series(completions, log_extra):
        log_extra("tensor", torch.arange(4))
        log_extra("generator", (text[0] for text in completions))
        return [0.0] * 4

    extra = {"tensor": [0, 1, 2, 3], "generator": ["a", "b", "g", "d"]}
    assert score(rollouts, series).extra == extra
    for values, count in (([1.0], "1"), (3, "int"), ("text", "str")):

        def logs_other(completions, log_extra, values=values):
            log_extra("odd", values)
            return [0.0] * 4

        with pytest.raises(
            RewardError, match=f"log_extra: 'odd' needs 4 values, .* received {count}"
        ):
            score(rollouts, logs_other)


def test_a_logged_metric_is_the_mean_under_the_name_of_the_reward(rollouts):
    """So the metric `accuracy`, as in an example of TRL, does not replace that of the run."""

    def reward(completions, log_metric):
        for value in (0.25, torch.tensor(0.75)):
            log_metric("accuracy", value)
        log_metric("step", 1)
        return [0.0] * 4

    expected = {"reward 0/accuracy": (4 * 0.5, 4), "reward 0/step": (4 * 1.0, 4)}
    assert score(rollouts, reward).metrics == expected
    with pytest.raises(UserError, match=r"cannot be named 'time'.*`time/\.\.\.`.*label"):
        Scorer([Reward(name="time", function=reward)])


def test_the_total_is_a_weighted_sum_without_missing_rewards(rollouts):
    """Without any reward the total is missing, not 0."""
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


# ---- order of calls


def test_async_rewards_run_while_plain_ones_run_in_the_main_thread(rollouts):
    """The first plain one ends after both async ones began, and these after the last plain one."""
    order, begun, last = [], [threading.Event(), threading.Event()], threading.Event()

    def plain(completions):
        order.append(threading.current_thread())
        time.sleep(0.1)
        assert all(event.wait(20) for event in begun)
        return [1.0] * 4

    def waiting(event):
        async def waits(completions):
            order.append(threading.current_thread())
            event.set()
            while not last.is_set():
                await asyncio.sleep(0.01)
            return [1.0] * 4

        return waits

    def last_plain(completions):
        values = plain(completions)
        last.set()
        return values

    with Effort() as effort:
        scores = score(rollouts, plain, *map(waiting, begun), last_plain)
    assert order.count(threading.main_thread()) == 2
    seconds = list(scores.seconds.values())
    assert all(0.1 <= spent < effort.elapsed - 0.1 for spent in seconds[::3])
    assert all(0.2 <= spent <= effort.elapsed for spent in seconds[1:3])


def test_after_a_failed_reward_no_other_is_called(rollouts):
    called = []

    def fails(completions):
        raise LookupError

    def takes_long(completions):
        called.append(True)
        return [0.0] * 4

    with pytest.raises(RewardError, match="'reward 0' raised LookupError"):
        score(rollouts, fails, takes_long)
    assert not called


def test_a_closed_scorer_leaves_no_thread(rollouts):
    async def waits(completions):
        return await asyncio.to_thread(lambda: [1.0] * 4)

    before = set(threading.enumerate())
    rewards = Scorer([Reward(name="waits", function=waits)])
    rewards(rollouts)
    threads = set(threading.enumerate()) - before
    assert threads
    rewards.close()
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads)
    assert rewards(rollouts).total.tolist() == [1.0] * 4
    rewards.close()


def test_rewards_cannot_change_the_arguments_of_others(rollouts):
    def clears_lists(prompts, completions, answer, completion_ids):
        for column in (prompts, completions, answer, completion_ids):
            column.clear()
        return [0.0] * 4

    def measures_lists(prompts, completions, answer, completion_ids):
        return [float(len(x)) for x in (prompts, completions, answer, completion_ids)]

    scores = score(rollouts, clears_lists, measures_lists)
    assert scores.column("reward 1").tolist() == [4.0] * 4
    assert rollouts.completions == TEXTS


def test_rewards_are_computed_without_gradients(rollouts):
    weight = torch.ones((), requires_grad=True)
    scores = score(rollouts, lambda completions: weight * torch.ones(4))
    assert scores.total.tolist() == [1.0] * 4


# ---- failures


def error_at_sample(row, name="reward 0"):
    return rf"(?s)reward '{name}' .*at sample {row} of 4.*question {row // 2}.*{TEXTS[row]}"


def test_an_exception_is_reported_with_reward_and_sample(rollouts):
    def reward(completions, **kwargs):
        return [1.0 / (len(text) - 5 if text == "gamma" else 1.0) for text in completions]

    with pytest.raises(RewardError, match=error_at_sample(2)) as caught:
        score(rollouts, reward)
    assert "ZeroDivisionError" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_of_an_async_reward_is_reported_with_reward_and_sample(rollouts):
    async def reward(completions):
        for text in completions:
            await asyncio.sleep(0)
            if text == "beta":
                raise KeyError("beta")

    with pytest.raises(RewardError, match=error_at_sample(1)):
        score(rollouts, reward)


@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("value", [math.inf, 10**400, "0.5", "right", {1.0}, {}, object()])
def test_a_value_that_is_no_number_is_reported(rollouts, row, value):
    returned = [1.0] * 4
    returned[row] = value
    with pytest.raises(RewardError, match=error_at_sample(row)) as caught:
        score(rollouts, lambda completions: returned)
    assert "returned" in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "message"),
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
def test_a_wrong_return_value_is_reported(rollouts, returned, message):
    with pytest.raises(RewardError, match=rf"(?s)reward 'reward 0' {message}.*return a list"):
        score(rollouts, lambda completions: returned)


def test_the_failing_reward_of_several_is_named(rollouts):
    with pytest.raises(RewardError, match="'reward 1' returned 1 value"):
        score(rollouts, lengths, lambda completions: [1.0], lengths)


def test_a_reward_that_hangs_is_ended_and_reported_with_its_sample(rollouts):
    release = threading.Event()

    def hanging(completions):
        for text in completions:
            if text == "gamma":
                release.wait(20)
        return [0.0] * 4

    async def hanging_async(completions):
        for text in completions:
            if text == "delta":
                await asyncio.sleep(20)

    with Effort() as effort:
        try:
            with pytest.raises(RewardError, match=error_at_sample(2)) as caught:
                score(rollouts, hanging, deadline=0.2)
            assert "did not answer within 0.2 s" in str(caught.value)
        finally:
            release.set()
        with pytest.raises(RewardError, match=error_at_sample(3)):
            score(rollouts, hanging_async, deadline=0.2)
    assert effort.wall < 2


def test_a_plain_reward_that_hangs_stops_the_run_even_if_it_catches_exceptions(rollouts):
    """`on_error: skip` does not apply: an interrupted call may leave anything half done."""

    def catches_all(completions):
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

    for reward in (catches_all, sleeps, computes, calls_back):
        with pytest.raises(RewardError, match=r"(?s)within 0.1 s.*`isolate: true`"):
            score(rollouts, reward, deadline=0.1, on_error="skip")
    assert score(rollouts, lengths).total.tolist() == [5.0, 4.0, 5.0, 5.0]


def test_an_async_reward_that_hangs_is_skipped(rollouts):
    async def hangs(completions):
        await asyncio.sleep(20)

    scores = score(rollouts, hangs, deadline=0.1, on_error="skip")
    assert scores.failed.all()


def test_a_reward_that_blocks_the_event_loop_is_named_and_a_new_loop_is_started(
    rollouts, monkeypatch
):
    monkeypatch.setattr("groupwise.scoring.event_loop.PATIENCE", 0.1)
    released = threading.Event()

    async def blocks(completions):
        if completions[0] == "alpha":
            released.wait(60)
        if completions[0] == "beta":
            await asyncio.sleep(1000)
        return [1.0] * 4

    async def waits(completions):
        await asyncio.sleep(0.01)
        return [1.0] * 4

    rewards = Scorer(
        [
            Reward(name="innocent", function=waits, deadline=1.0, on_error="skip"),
            Reward(name="guilty", function=blocks, deadline=1.0),
        ]
    )
    try:
        with pytest.raises(RewardError, match=r"'guilty' .*; reward 'guilty' keeps the event loop"):
            rewards(rollouts)
        other = replace(rollouts, completions=TEXTS[::-1])
        assert rewards(other).total.tolist() == [2.0] * 4
        with pytest.raises(RewardError, match=r"'guilty' did not answer within 1 s"):
            rewards(replace(rollouts, completions=[*TEXTS[1:], TEXTS[0]]))
    finally:
        released.set()


def test_a_reward_may_use_signals_and_alarms(rollouts):
    def on_alarm(number, frame):
        raise LookupError

    def reward(completions):
        signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            time.sleep(20)
        except LookupError:
            return [3.0] * 4

    before = signal.getsignal(signal.SIGALRM)
    try:
        assert score(rollouts, reward, deadline=5).total.tolist() == [3.0] * 4
        assert signal.getsignal(signal.SIGALRM) is on_alarm
    finally:
        signal.signal(signal.SIGALRM, before)

    def interrupted(completions):
        signal.raise_signal(signal.SIGINT)

    # Background jobs may ignore SIGINT.
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            score(rollouts, interrupted)
    finally:
        signal.signal(signal.SIGINT, ctrl_c)


# Neither can be interrupted: one catches all exceptions, the other lets no other thread run.
STUBBORN = """
while True:
    try:
        __import__("time").sleep(60)
    except BaseException:
        pass
"""
GREEDY = "7 ** 10 ** 9"


@pytest.mark.slow
def test_a_call_that_cannot_be_interrupted_ends_the_process_and_is_named():
    program = (
        "from groupwise.scoring import watchdog\n"
        "watchdog.GRACE = 0.3\n"
        "def reward(): exec({!r})\n"
        "watchdog.within_deadline(reward, who=\"reward 'stubborn'\", deadline=0.2)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(code)], stderr=subprocess.PIPE, text=True
        )
        for code in (STUBBORN, GREEDY)
    ]
    message, traceback = (process.communicate(timeout=60)[1] for process in processes)
    assert [process.returncode for process in processes] == [1, 1]
    assert "reward 'stubborn' did not answer within 0.2 s and cannot be interrupted" in message
    assert "in reward" in message
    assert "its last checkpoint is intact" in message
    assert "in reward" in traceback


def test_a_timeout_error_of_a_reward_is_not_taken_for_its_deadline(rollouts):
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


@pytest.mark.slow
def test_deadlines_work_with_a_closed_stderr():
    program = (
        "import sys; from groupwise.scoring import watchdog\n"
        "watchdog.GRACE = 0.3; sys.__stderr__.close()\n"
        "print(watchdog.within_deadline(lambda: 'answer', who='one', deadline=5), flush=True)\n"
        f"watchdog.within_deadline(lambda: exec({STUBBORN!r}), who='another', deadline=0.2)\n"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, check=False, stdout=subprocess.PIPE, timeout=60)
    assert (result.stdout, result.returncode) == (b"answer\n", 1)


def test_a_late_deadline_does_not_interrupt_the_next_call():
    """The first call ends after its deadline, but before its watchdog sends the signal."""

    class Late(threading.Event):
        def wait(self, timeout=None):
            late.end()
            return timeout != 0.0

    late = watchdog._Watchdog("reward", 0.0)
    late._over = Late()

    def next_call():
        late._watch()
        return "answer"

    assert watchdog.within_deadline(next_call, who="another", deadline=5) == "answer"
    assert not late.is_overdue


def test_long_completions_are_shortened_in_messages(rollouts):
    long = replace(rollouts, completions=["x" * 10_000] * 4)
    with pytest.raises(RewardError) as caught:
        score(long, lambda completions: [])
    assert len(str(caught.value)) < 1000


# ---- on_error: skip


def fails_at(*rows, values=None):
    def reward(completions):
        returned = list(values or [1.0, 2.0, 3.0, 4.0])
        raise SampleErrors(returned, dict.fromkeys(rows, "could not be parsed"))

    return reward


def test_sample_errors_stop_the_run_and_name_the_first_sample(rollouts):
    with pytest.raises(RewardError, match=error_at_sample(1)) as caught:
        score(rollouts, fails_at(1, 3))
    assert "could not be parsed" in str(caught.value)
    assert "(2 samples failed)" in str(caught.value)


def test_samples_that_failed_with_nan_stop_no_run_and_keep_their_reason(rollouts):
    values = [1.0, math.nan, 3.0, 4.0]
    scores = score(rollouts, fails_at(1, values=values))
    assert scores.failed.tolist() == [False, True, False, False]
    assert scores.reasons[1] == "reward 'reward 0' could not be parsed"
    with pytest.raises(RewardError, match=error_at_sample(3)):
        score(rollouts, fails_at(1, 3, values=values))


def test_skipped_samples_are_left_out_and_never_zero(rollouts):
    """If one of two rewards fails on a sample, its total is missing, not smaller."""
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
def test_all_samples_of_a_failed_call_are_skipped(rollouts, reward):
    scores = score(rollouts, reward, on_error="skip")
    assert scores.failed.all()
    assert scores.total.isnan().all()


def test_only_samples_with_wrong_values_are_skipped(rollouts):
    scores = score(rollouts, lambda completions: [1.0, math.inf, None, "x"], on_error="skip")
    assert scores.failed.tolist() == [False, True, False, True]
    assert scores.total.isnan().tolist() == [False, True, True, True]
    mixed = score(rollouts, fails_at(0, values=[None, math.inf, 3.0, None]), on_error="skip")
    assert mixed.failed.tolist() == [True, True, False, False]
    assert float(mixed.total[2]) == 3.0


def test_a_further_round_of_sampling_adds_only_to_counts_and_seconds():
    first = {"reward": 1.0, "unscored": 2, "reward_time/a": 0.5}
    second = {"reward": 5.0, "unscored": 1, "reward_time/a": 0.25, "failed/a": 3}
    expected = {"reward": 1.0, "unscored": 3, "reward_time/a": 0.75, "failed/a": 3}
    assert with_round(first, second) == expected


def test_skipped_samples_are_not_trained_on_and_are_counted(lab):
    def reward(completions, **kwargs):
        values = lab.ones(completions)
        raise SampleErrors([None, *values[1:]], {0: "broken"})

    def train_step(function, on_error):
        trainer = lab.trainer(groups_per_step=1, group_size=8, microbatch=1)
        scorer = Scorer([Reward(name="ones", function=function, on_error=on_error)])
        trainer.experience.scorer = scorer
        return trainer, lab.step(trainer)

    trainer, metrics = train_step(reward, "skip")
    assert metrics["failed"] == metrics["failed/ones"] == 1
    assert metrics["unscored"] == 0
    full, _ = train_step(lab.ones, "stop")
    # The failed sample is not in the mean, the std and the logged reward.
    unskipped = lab.trainer(groups_per_step=1, group_size=8)
    scored = unskipped.experience.next(unskipped.state)
    rollouts, scores = scored.rollouts, scored.scores
    assert metrics["reward"] == pytest.approx(float(scores.total[1:].mean()))
    assert metrics["reward_std"] == pytest.approx(float(scores.total[1:].std()))
    assert not torch.equal(trainer.policy.table, full.policy.table)
    assert metrics["trained_decisions"] <= int(rollouts.lengths[1:].sum())


# ---- columns


def test_columns_that_collide_with_arguments_are_refused(rollouts):
    names = ("completions", "groups", "trainer_state", "log_extra", "log_metric", "completion_ids")
    for column in names:
        prompts = [{**row, column: 1} for row in rollouts.prompts]
        with pytest.raises(UserError, match=f"column '{column}' collides"):
            score(replace(rollouts, prompts=prompts), lengths)
    bound = Reward(name="bound", function=lengths, bound=frozenset({"answer"}))
    with pytest.raises(UserError, match="'bound': the dataset's column 'answer' collides"):
        Scorer([bound])(rollouts)


def test_a_missing_column_is_named(rollouts):
    def reward(completions, solution, **kwargs):
        return [0.0] * 4

    message = "reward 'reward 0' needs the column 'solution'; the dataset has answer, id, level"
    with pytest.raises(UserError, match=re.escape(message)):
        score(rollouts, reward)

    with pytest.raises(
        UserError, match="needs the column 'completion', did you mean 'completions'"
    ):
        score(rollouts, lambda completion: [0.0] * 4)

    def optional(completions, solution=None):
        return [0.0] * 4

    score(rollouts, optional)
    without = replace(rollouts, facts={})
    with pytest.raises(UserError, match="needs the column 'completion_ids'"):
        score(without, lambda completions, completion_ids: [0.0] * 4)


def test_rewards_need_different_names():
    with pytest.raises(UserError, match="at least one reward"):
        Scorer([])
    rewards = [Reward(name="same", function=lengths)] * 2
    with pytest.raises(UserError, match=r"two rewards are named 'same'.*label"):
        Scorer(rewards)


# ---- scores


def test_selected_and_joined_scores_equal_the_original(rollouts):
    scores = score(rollouts, lengths, lengths)
    parts = [score(rollouts.select(rows), lengths, lengths) for rows in ([0, 1], [2, 3])]
    joined = Scores.concat(parts)
    assert torch.equal(joined.values, scores.values)
    assert torch.equal(scores.select(torch.tensor([3, 0])).total, scores.total[[3, 0]])


def test_refresh_receives_the_scored_rollouts(rollouts):
    class Learns:
        def __call__(self, completions):
            return [1.0] * 4

        def refresh(self, rollouts, scores):
            self.received = (rollouts, scores)
            return {"count": 4.0}

    learner = Learns()
    rewards = Scorer([Reward(name="a", function=learner), Reward(name="b", function=lengths)])
    scores = rewards(rollouts)
    assert rewards.teach(rollouts, scores, RunState()) == {"a/count": 4.0}
    assert learner.received == (rollouts, scores)
