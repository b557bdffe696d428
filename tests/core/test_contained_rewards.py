"""What a reward's call does to its process: it is undone, or it is named, and never passes for a
finished run."""

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.effort import Effort

from groupwise.kit import processes, trust
from groupwise.rewards import Reward, RewardError, RunState, SampleErrors
from groupwise.scoring.scorer import Scorer

FORKED = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class UnspeakableError(Exception):
    def __str__(self):
        raise LookupError("no words")


class Outcome(BaseException):
    """As pytest's `Failed`, which `pytest.fail` raises, and other packages' own."""


@pytest.fixture
def rollouts(lab):
    rows = [{"prompt": f"question {n}", "id": n} for n in range(2)]
    plain = lab.build(rows, [[0], [0]], group_size=1)
    return replace(plain, completions=["alpha", "beta"])


def score(rollouts, function, **options):
    scorer = Scorer([Reward(name="reward", function=function, **options)])
    try:
        return scorer(rollouts)
    finally:
        scorer.close()


def both(function):
    """The function as a plain reward and as an async one."""

    async def waits(completions):
        await asyncio.sleep(0)
        return function(completions)

    return function, waits


# ---- forks


def forks(leave):
    """A reward whose child leaves by `leave`; it returns the child's exit code as its values."""

    def reward(completions):
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)  # ends it where it goes on
            return leave()
        return [float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))] * 2

    return reward


@FORKED
@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (lambda: [1.0, 1.0], 0),
        (lambda: sys.exit(5), 5),
        (sys.exit, 0),
        (lambda: 1 / 0, 1),
    ],
    ids=["returns", "exits", "exits without a code", "raises"],
)
@pytest.mark.slow(after=1)
def test_a_child_of_a_reward_ends_where_the_reward_does(rollouts, leave, code, capfd):
    own = os.getpid()
    try:
        for reward in both(forks(leave)):
            assert score(rollouts, reward).total.tolist() == [code, code]
    finally:
        if os.getpid() != own:
            os._exit(42)
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (code == 1)


@FORKED
def test_a_child_of_a_reward_that_loads_or_learns_ends_there(rollouts):
    class Learns:
        codes = ()

        def load(self):
            self.codes = [*self.codes, forks(lambda: [0])(None)[0]]

        def refresh(self, rollouts, scores):
            self.load()

        def __call__(self, completions):
            return [0.0] * 2

    own, reward = os.getpid(), Learns()
    scorer = Scorer([Reward(name="reward", function=reward)])
    try:
        scorer.load()
        scorer.teach(rollouts, scorer(rollouts), RunState())
    finally:
        if os.getpid() != own:
            os._exit(42)
    assert reward.codes == [0, 0]


# ---- exceptions


@pytest.mark.parametrize("kind", [GeneratorExit, Outcome, UnspeakableError, SystemExit])
def test_any_exception_of_a_reward_is_a_failed_call(rollouts, kind):
    def reward(completions):
        raise kind

    for function in both(reward):
        with pytest.raises(RewardError, match=f"'reward' raised {kind.__name__}: "):
            score(rollouts, function)
        assert score(rollouts, function, on_error="skip").failed.all()


def test_a_reason_or_value_of_any_type_is_reported(rollouts):
    class Mute(float):
        def __repr__(self):
            raise LookupError

    class Odd:
        def __float__(self):
            raise LookupError("no number")

    def fails(completions):
        raise SampleErrors([1.0, None], {1: UnspeakableError()})

    def fails_without_a_word(completions):
        raise SampleErrors([1.0, None], {1: ""})

    for function in (
        fails,
        fails_without_a_word,
        lambda completions: [1.0, Mute("inf")],
        lambda completions: [1.0, Odd()],
    ):
        scores = score(rollouts, function, on_error="skip")
        assert scores.failed.tolist() == [False, True]
        with pytest.raises(RewardError):
            score(rollouts, function)


def test_an_exception_that_cannot_be_sent_to_other_processes_is_described():
    class LocalError(UnspeakableError):
        """Cannot be pickled."""

    sent = processes._sendable(LocalError())
    assert str(sent) == "LocalError: (LocalError without a readable message)"


# ---- values


@pytest.mark.parametrize("value", [1e308, -1e308, 10**300])
def test_a_value_whose_statistics_would_overflow_is_refused(rollouts, value):
    with pytest.raises(RewardError, match=r"returned -?1e\+30\d, which is beyond 3.4e\+38"):
        score(rollouts, lambda completions: [value, 0.0])
    scores = score(rollouts, lambda completions: [value, 0.0], on_error="skip")
    assert scores.failed.tolist() == [True, False]


# ---- settings of the process

FEWER = 512
"""A limit of open files, below the usual ones and above what a process of tests has open."""


def changes_settings(folder):
    def reward(completions):
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        os.chdir(folder)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEWER, most))
        if os.environ.get("SIGNALS"):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: None)
            signal.alarm(1)
        return [1.0, 2.0]

    return reward


def settings():
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.ones(1).device,
        "folder": Path.cwd(),
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "handlers": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)],
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    }


@pytest.fixture
def untouched():
    """Puts the settings back by other means, so that a failing test disturbs no other."""
    before, handlers = settings(), (signal.SIGINT, signal.SIGTERM)
    yield before
    torch.set_default_dtype(before["dtype"])
    torch.set_default_device(None)
    os.chdir(before["folder"])
    resource.setrlimit(resource.RLIMIT_NOFILE, before["limit"])
    for number, handler in zip(handlers, before["handlers"], strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("leaves", ["returns", "raises"])
@pytest.mark.timeout(0)  # its alarm would be taken for the reward's
def test_what_a_plain_reward_sets_in_the_process_is_undone(
    rollouts, untouched, tmp_path, monkeypatch, leaves
):
    monkeypatch.setenv("SIGNALS", "1")

    def reward(completions):
        values = changes_settings(tmp_path)(completions)
        return values if leaves == "returns" else 1 / 0

    before = settings()
    scores = score(rollouts, reward, on_error="skip")
    assert settings() == before
    assert scores.failed.tolist() == [leaves == "raises"] * 2


def test_what_an_async_reward_sets_in_the_process_is_undone(rollouts, untouched, tmp_path):
    devices = []

    async def sets(completions):
        devices.append(torch.ones(1).device.type)
        return changes_settings(tmp_path)(completions)

    scorer = Scorer([Reward(name="sets", function=sets)])
    for _ in range(2):
        scorer(rollouts)
        assert settings() == untouched
    scorer.close()
    assert devices == ["cpu", "cpu"]


def test_what_others_change_between_async_calls_stays(rollouts, untouched, tmp_path):
    """A callback may move to another folder, or lower a limit, between two steps."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    calls = threading.Semaphore(0)

    async def sets(completions):
        values = changes_settings(theirs)(completions)
        calls.release()
        return values

    trained = Scorer([Reward(name="sets", function=sets)])
    watched = Scorer([Reward(name="sets", function=sets)])
    trained(rollouts)
    os.chdir(ours)
    soft, hard = untouched["limit"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    now = settings()
    # As in an evaluation: the calls of both run at once. Each has changed the settings before the
    # first result is taken, as a call in another thread may change them at any time.
    begun = [(scorer, scorer.start(rollouts)) for scorer in (trained, watched)]
    for _ in range(3):
        assert calls.acquire(timeout=60)
    for scorer, scoring in begun:
        scorer.finish([scoring])
        assert settings() == now
    assert Path.cwd() == ours
    trained.start(rollouts)  # its result is never taken
    assert calls.acquire(timeout=60)
    for scorer in (trained, watched):
        scorer.close()
    os.chdir(tmp_path)
    watched(rollouts)
    assert Path.cwd() == tmp_path
    watched.close()


def test_a_limit_that_cannot_be_raised_again_ends_the_run(rollouts, monkeypatch):
    """As for a hard limit, which only root may raise."""
    original = resource.setrlimit
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def reward(completions):
        original(resource.RLIMIT_NOFILE, (FEWER, before[1]))
        return [1.0, 2.0]

    def refuses(number, limits):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuses)
    message = r"(?s)changed the limit RLIMIT_NOFILE.*not allowed to raise.*set `isolate: true`"
    try:
        with pytest.raises(RewardError, match=message):
            score(rollouts, reward, on_error="skip")
    finally:
        original(resource.RLIMIT_NOFILE, before)


def test_a_folder_that_was_moved_and_a_limit_that_was_raised_stay(rollouts, tmp_path, monkeypatch):
    """Neither can be undone: the folder is gone, and files that were opened since may need the
    limit."""
    inside = tmp_path / "project"
    inside.mkdir()
    monkeypatch.chdir(inside)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))

    def reward(completions):
        inside.rename(tmp_path / "moved")
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return [1.0, 2.0]

    try:
        assert score(rollouts, reward).total.tolist() == [1.0, 2.0]
        assert Path.cwd() == tmp_path / "moved"
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- the end of the process

ENDS = """
    import os, sys, threading, time
    import groupwise
    from groupwise.run.interruption import orderly

    def reward(completions):
        {act}

    with orderly():
        reward(None)
"""
ALONE = """
    import sys, threading, time
    from groupwise.cli import commands

    def app():
        threading.Thread(target=time.sleep, args=(600,), name="poller").start()
        {leave}

    commands.app, commands.PATIENCE = app, 0.1
    commands.main()
"""


def run(program, **values):
    command = [sys.executable, "-c", textwrap.dedent(program).format(**values)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("os._exit(0)", 1),
        ("os._exit(3)", 3),
        ("threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(60)", 1),
    ],
)
def test_a_process_ended_by_a_reward_is_no_success(act, code):
    done = run(ENDS, act=act)
    assert done.returncode == code, done.stderr
    assert f"os._exit({'3' if code == 3 else '0'})" in done.stderr
    assert "before all was done" in done.stderr


def test_a_run_ended_by_sys_exit_is_no_success():
    done = run(ENDS, act="sys.exit(0)")
    assert done.returncode == 1
    assert re.search(r'UserError: sys.exit\(0\), called in ".*", line \d, in reward,', done.stderr)


@FORKED
def test_a_child_may_end_by_exit():
    act = "child = os.fork() or os._exit(0); print(os.waitpid(child, 0)[1])"
    assert run(ENDS, act=act).stdout == "0\n"


@pytest.mark.parametrize(
    ("leave", "code"), [("", 0), ("sys.exit(0)", 0), ("sys.exit(2)", 2), ("1 / 0", 1)]
)
@pytest.mark.slow(after=1)
def test_a_thread_that_goes_on_does_not_hold_the_finished_command(leave, code):
    with Effort() as effort:
        done = run(ALONE, leave=leave)
    assert done.returncode == code, done.stderr
    assert "the thread 'poller' goes on" in done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (leave == "1 / 0")
    assert effort.wall < 60


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (OSError("Error no file named model.safetensors found in directory m"), True),
        (PermissionError(13, "Permission denied", "/m/model.safetensors"), False),
        (OSError(5, "Input/output error", "/m/model.safetensors"), False),
        (OSError("m has no file named 'model-00002-of-00002.safetensors'"), False),
        (OSError("m does not appear to have a file named model.fp16.safetensors."), True),
        (OSError("Unable to load weights from checkpoint file for '/m/model.safetensors'"), False),
        (OSError("It looks like the config file at 'model.safetensors' is no JSON file"), False),
    ],
)
def test_only_a_model_without_safetensors_is_said_to_lack_them(error, lacks):
    assert trust.lacks_safetensors(error) is lacks
