"""An environment that hangs, dies, leaks or lies costs its episodes, and no run."""

import asyncio
import json
import threading
from contextlib import closing, redirect_stderr
from contextvars import Context
from io import StringIO

import pytest
from tests.core.test_environments import arguments

import groupwise
from groupwise import Environment
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.episodes.sampling import Sampling
from groupwise.kit.errors import UserError
from groupwise.record import Group
from groupwise.testing import check_environment
from groupwise_testing.playing import played


def play(lab, environment, *, deadline=0.2, rows=2, size=4, batches=1):
    """Episodes of some rows, which the run would train on: those of the last batch.

    deadline: one of 0.2 s is for episodes that wait in vain; a busy machine misses it.
    """
    policy = lab.Tabular(prompts=8)
    sampling = Sampling(policy, policy, seed=3, batch=64)
    draws = [Group(number, row) for number, row in enumerate(lab.rows(8)[:rows])]
    sizes, samplings = {"policy": size}, {"policy": sampling}
    with closing(EpisodeSampler(environment, samplings, sizes, deadline=deadline)) as sampler:
        sampler.begin(0)
        sampler.follow({}, 0)
        return [played(sampler, draws) for _ in range(batches)][-1]


def line(function, number):
    """Of the file, from that of a function."""
    return f"(line {function.__code__.co_firstlineno + number} of test_faulty_environments.py)"


class Faulty(Environment):
    """Two turns; between them the episodes of row 1, in training and evaluations, are at fault."""

    async def play(self, row, players):
        (player,) = players.values()
        reply = await player(row)
        if row["id"] % 3 == 1:
            await self.fault(player, reply)
        await player(row)

    async def fault(self, player, reply):
        raise NotImplementedError


class Hangs(Faulty):
    async def fault(self, player, reply):
        await asyncio.Event().wait()


class Ignores(Faulty):
    """Goes on after it was cancelled."""

    async def fault(self, player, reply):
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


class Exits(Faulty):
    async def fault(self, player, reply):
        raise SystemExit(3)


class ExitsInTask(Faulty):
    """As a tool that runs a program of the model's might."""

    async def fault(self, player, reply):
        async def tool():
            exec("exit(3)")

        await asyncio.gather(tool(), asyncio.sleep(0))


class IsCancelled(Faulty):
    """Awaits a task that was cancelled."""

    async def fault(self, player, reply):
        task = asyncio.ensure_future(asyncio.sleep(10))
        task.cancel()
        await task


class FailsBeside(Faulty):
    """A tool fails in a group of tasks, which cancels the player's call."""

    async def fault(self, player, reply):
        async def tool():
            raise ValueError("no such city")

        async with asyncio.TaskGroup() as group:
            group.create_task(player(reply))
            group.create_task(tool())


class Impatient(Faulty):
    """Waits for the player no longer than it takes to ask, and ends."""

    async def fault(self, player, reply):
        call = asyncio.ensure_future(player(reply))
        await asyncio.sleep(0)
        await asyncio.wait_for(call, 0)


class Borrows(Faulty):
    """Goes on from a reply of another episode."""

    def __init__(self):
        self.first = None

    async def fault(self, player, reply):
        self.first = self.first or reply
        await player(self.first)
        raise AssertionError("the first episode may do it")


class Returns(Faulty):
    """Returns a reply of another episode."""

    def __init__(self):
        self.first = None

    async def play(self, row, players):
        (player,) = players.values()
        await player(row)
        reply = await player(row)
        if row["id"] % 3 != 1:
            return [(reply, {})]
        if self.first is None:
            self.first = reply
            raise AssertionError("the first episode may do it")
        return [(self.first, {})]


LATE = "took longer than 0.2 s between two completions"
FAULTS = {
    Hangs: LATE,
    Ignores: LATE,
    Exits: "the environment raised SystemExit: 3",
    ExitsInTask: "the environment raised SystemExit: 3",
    IsCancelled: "the environment raised CancelledError: ",
    FailsBeside: "the environment raised ExceptionGroup: ",
    Impatient: "the environment raised TimeoutError: ",
    Borrows: "raised ValueError: the context is a reply of another episode",
    Returns: "`play` returned a reply of another episode",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_an_episode_that_hangs_dies_or_lies_fails_alone(lab, kind):
    episodes = play(lab, kind())
    reasons = dict(enumerate(episodes.judged.failures))
    assert len(reasons) == 8
    assert [reasons[n] for n in range(4)] == [None] * 4
    assert all(reasons[n] for n in range(4, 8))
    assert any(FAULTS[kind] in reasons[n] for n in range(4, 8))
    expected = play(lab, Faulty(), rows=1)
    assert episodes.judged.completions[:4] == expected.judged.completions


def test_the_reason_says_where_an_episode_hung_and_what_allows_more(lab):
    assert play(lab, Hangs()).failures["/"] == (
        f"a completion failed: the environment {LATE} {line(Hangs.fault, 1)}; `turn_deadline` "
        f"allows more, at the prompt 'question 1'"
    )


def test_time_in_which_an_episode_waits_for_its_player_does_not_count(lab, monkeypatch):
    sample, released = lab.Tabular.sample, threading.Event()

    def slow(self, *args, **options):
        released.wait(0.4)
        return sample(self, *args, **options)

    monkeypatch.setattr(lab.Tabular, "sample", slow)
    assert not play(lab, Faulty(), rows=1).judged.failed.any()


def test_evaluations_fail_the_same_episodes_and_the_run_goes_on(lab, tmp_path, capsys):
    environment = {"name": Hangs(), "turn_deadline": 0.1}
    result = groupwise.train(**arguments(lab, tmp_path, environment=environment, quiet=False))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "reward" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert sum(row["failed"] for row in steps) > 0
    assert result.after["failed"] > 0
    samples = (tmp_path / "run" / "samples" / "after.jsonl").read_text().splitlines()
    failed = [row for row in map(json.loads, samples) if "failed" in row]
    assert len(failed) == result.after["failed"]
    assert all("took longer than 0.1 s" in row["failed"] for row in failed)
    assert "warning: a completion failed: the environment took longer" in capsys.readouterr().err


# ---- code that does not wait


class Blocks(Environment):
    """Waits without letting others go on."""

    def __init__(self):
        self.released = threading.Event()
        self.closed = False

    async def play(self, row, players):
        (player,) = players.values()
        await player(row)
        self.released.wait()

    async def close(self):
        self.closed = True


def test_code_that_blocks_the_loop_is_named_and_ends_the_run(lab, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("groupwise.episodes.loop_thread.BLOCKED", 0.1)
    environment = Blocks()
    sections = {"environment": {"name": environment, "turn_deadline": 0.4}}
    busy = f"has kept the event loop busy for 0 s {line(Blocks.play, 3)}: await it, or call it by"
    try:
        with pytest.raises(UserError, match="This cannot be ended, so the run ends") as raised:
            groupwise.train(**arguments(lab, tmp_path, **sections))
    finally:
        environment.released.set()
    assert busy in str(raised.value)
    assert busy in capsys.readouterr().err
    assert not environment.closed  # its loop was never free again


def test_as_many_threads_as_wait_run_at_once(lab):
    together = threading.Barrier(64, timeout=20)

    class Threads(Environment):
        async def play(self, row, players):
            await asyncio.to_thread(together.wait)
            (player,) = players.values()
            await player(row)

    assert not play(lab, Threads(), deadline=30, rows=1, size=64).judged.failed.any()


# ---- what episodes leave, and what they share


class Leaves(Environment):
    """Polls beside its episodes, which share what the first of them has started."""

    def __init__(self):
        self.polls = []
        self.shared = None

    async def play(self, row, players):
        async def poll():
            await asyncio.sleep(100)

        if self.shared is None:
            self.shared = asyncio.create_task(asyncio.sleep(100))
        assert not self.shared.done()
        self.polls.append(asyncio.create_task(poll()))
        self.polls.append(asyncio.create_task(asyncio.sleep(0)))  # ends by itself
        (player,) = players.values()
        await player(row)


def test_tasks_that_episodes_leave_are_named_once_and_cancelled_at_the_end(lab, capsys):
    for _ in range(2):  # a second run of the same process names them, too
        environment = Leaves()
        assert not play(lab, environment, deadline=30, batches=2).judged.failed.any()
        assert [task.cancelled() for task in environment.polls] == [True, False] * 16
        printed = capsys.readouterr().err
        assert printed.count("warning: episodes leave a task running") == 1
        assert (
            f"Leaves.play.<locals>.poll {line(Leaves.play, 2)}. It goes on until the run ends"
            in printed
        )


class Pool(Environment):
    """Each of the first episodes adds a connection with a reader, until there are eight."""

    def __init__(self):
        self.readers = []

    async def play(self, row, players):
        async def read():
            await asyncio.Event().wait()

        if len(self.readers) < 8:
            self.readers.append(asyncio.create_task(read()))
        assert not any(reader.done() for reader in self.readers)
        (player,) = players.values()
        await player(row)

    async def close(self):
        self.open = sum(not reader.done() for reader in self.readers)


def test_a_pool_that_the_first_episodes_fill_lives_as_long_as_the_run(lab, tmp_path):
    environment = Pool()
    result = groupwise.train(**arguments(lab, tmp_path, environment=environment))
    assert "failed" not in result.after  # it asserts that
    assert environment.open == 8
    assert all(reader.cancelled() for reader in environment.readers)


def test_tasks_with_an_empty_context_are_of_no_episode(lab, capsys):
    tasks = []

    class Apart(Environment):
        async def play(self, row, players):
            tasks.append(asyncio.create_task(asyncio.sleep(100), context=Context()))
            (player,) = players.values()
            await player(row)

    assert not play(lab, Apart()).judged.failed.any()
    assert "leave a task running" not in capsys.readouterr().err


def test_what_episodes_share_lives_as_long_as_the_run(lab, tmp_path):
    environment = Leaves()
    result = groupwise.train(**arguments(lab, tmp_path, environment=environment))
    assert "failed" not in result.after  # it asserts that
    assert environment.shared.cancelled()  # at the end, with the loop


class Door(Environment):
    """closing: awaited in `close`."""

    def __init__(self, closing=None):
        self.closing, self.closed = closing, 0

    async def play(self, row, players):
        (player,) = players.values()
        await player(row)

    async def close(self):
        self.closed += 1
        if self.closing is not None:
            await self.closing()


async def forever():
    await asyncio.Event().wait()


async def refuses():
    raise ConnectionError("no server")


@pytest.mark.parametrize(
    ("closing", "problem"),
    [(refuses, "`close` raised ConnectionError: no server"), (forever, "`close` did not end with")],
)
def test_an_environment_that_cannot_be_closed_changes_no_result(lab, tmp_path, closing, problem):
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()) as printed:
        patch.setattr("groupwise.episodes.episode_sampler.CLOSING", 0.2)
        result = groupwise.train(**arguments(lab, tmp_path, environment=Door(closing=closing)))
    assert result.steps == 2
    assert f"warning: environment: {problem}" in printed.getvalue()


def test_an_environment_is_closed_after_an_error(lab, tmp_path):
    def fails(completions):
        raise ZeroDivisionError("a slip")

    environment = Door()
    with pytest.raises(UserError, match="a slip"):
        groupwise.train(**arguments(lab, tmp_path, environment=environment, rewards=[fails]))
    assert environment.closed == 1


def test_a_check_names_what_close_raised():
    with pytest.raises(AssertionError, match="`close` raised ConnectionError: no server"):
        check_environment(
            Door(closing=refuses), [{"prompt": "a"}, {"prompt": "b"}], lambda prompt, random: "c"
        )


def test_episodes_whose_frame_outlives_the_run_begin_no_thread(lab):
    """The frame may end with the program, which can begin no thread any more, and would wait."""
    policy = lab.Tabular(prompts=8)
    samplings = {"policy": Sampling(policy, policy, seed=3, batch=2)}
    sampler = EpisodeSampler(Faulty(), samplings, {"policy": 2}, deadline=5.0)
    sampler.begin(0)
    sampler.follow({}, 0)
    drawn = sampler.draw([Group(number, {"id": 0}) for number in range(4)])
    next(drawn)  # then a reward raises, say
    assert sampler.close() is None
    before = threading.active_count()
    drawn.close()
    assert threading.active_count() == before
