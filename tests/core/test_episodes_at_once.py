"""`environment.episodes`: how many are played at once, which changes no sample."""

import asyncio
import random
from contextlib import closing
from contextvars import ContextVar

import pytest
from tests.core.launching import call
from tests.core.test_concurrent_draws import Answered, record, train, waits
from tests.core.test_environments import arguments

import groupwise
from groupwise import Environment
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.episodes.sampling import Sampling
from groupwise.record import Group
from groupwise_testing.playing import played

NAME = ContextVar("NAME", default=None)


class Rooms(Environment):
    """Each episode has one of a few rooms for two turns.

    rooms: how many there are, more of which raise; order: of the rows, as they began; ending: what
    odd rows do between their turns.
    """

    def __init__(self, rooms=None, ending=None):
        self.rooms, self.ending, self.order, self.taken, self.most = rooms, ending, [], 0, 0

    async def play(self, row, players):
        (player,) = players.values()
        if self.taken == self.rooms:
            raise ConnectionError("no room is left")
        before = NAME.get()
        NAME.set(row["id"])
        self.order.append(row["id"])
        self.taken += 1
        self.most = max(self.most, self.taken)
        try:
            await player(row)
            await asyncio.sleep(random.random() * 0.01)
            if self.ending is not None and row["id"] % 2:
                await self.ending()
            await player(row)
        finally:
            self.taken -= 1
        return {"before": before}

    def columns(self, labels):
        return ["before"]


def play(lab, environment, at_once, *, deadline=5.0):
    policy = lab.Tabular(prompts=8)
    sampling = {"policy": Sampling(policy, policy, seed=3, batch=64)}
    draws = [Group(number, row) for number, row in enumerate(lab.rows(8)[:6])]
    sizes, options = {"policy": 4}, {"deadline": deadline, "at_once": at_once}
    with closing(EpisodeSampler(environment, sampling, sizes, **options)) as sampler:
        sampler.begin(0)
        sampler.follow({}, 0)
        return played(sampler, draws)


@pytest.mark.parametrize("rooms", [1, 3, 7])
def test_so_many_are_played_at_once_in_the_order_of_draws(lab, rooms):
    environment, expected = Rooms(rooms), play(lab, Rooms(), None)
    limited = play(lab, environment, rooms)
    assert environment.order == [row for row in range(6) for _ in range(4)]
    assert environment.most == rooms
    assert not limited.failures
    for episodes in (limited, play(lab, Rooms(), 100)):
        own, others = episodes.rollouts("policy"), expected.rollouts("policy")
        assert own.completions == others.completions
        assert own.groups.tolist() == others.groups.tolist()
    assert {*limited.judged.facts["before"]} == {None}  # of no episode before it


async def hangs():
    await asyncio.Event().wait()


async def raises():
    raise RuntimeError("a tool is gone")


@pytest.mark.parametrize("ending", [hangs, raises])
def test_episodes_that_fail_make_room_for_the_next_ones(lab, ending):
    episodes = play(lab, Rooms(ending=ending), 2, deadline=0.05)
    failed = [call.row["id"] % 2 == 1 for call in episodes.judged_calls if call.rollout.failure]
    assert failed == [True] * 12
    assert len(episodes.judged_calls) == 24


def test_an_error_begins_no_further_episodes(lab):
    async def ends():
        raise groupwise.kit.errors.UserError("this run is over")

    environment = Rooms(ending=ends)
    with pytest.raises(groupwise.kit.errors.UserError, match="this run is over"):
        play(lab, environment, 1)
    assert len(environment.order) < 10


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_run_is_the_same_whatever_the_limit(lab, tmp_path, concurrency):
    options = {"concurrency": concurrency, "delay": waits}
    _, result = train(lab, tmp_path / "all", Answered(), **options)
    expected = record(tmp_path / "all", result)
    limited = {"name": Answered(wait=0.004), "episodes": 3}
    sampler, result = train(lab, tmp_path / "three", limited, **options)
    assert record(tmp_path / "three", result) == expected
    assert sampler.most <= 3 * 2  # a branch each


def runs(lab, folder):
    """What a run with four groups a step, two episodes at once, has measured and learned."""
    environment = Rooms()
    policy, train = lab.Tabular(), {"steps": 2, "groups_per_step": 4, "group_size": 4}
    sections = {"environment": {"name": environment, "episodes": 2}, "policy": policy}
    groupwise.train(**arguments(lab, folder, train=train, **sections))
    return [environment.most, policy.table.flatten().tolist()]


def test_two_processes_play_what_one_does(lab, tmp_path):
    most, table = runs(lab, tmp_path / "one")
    most_of_two, table_of_two = call(runs, tmp_path, 2)
    assert most == most_of_two == 2  # on each process
    assert table_of_two == pytest.approx(table, abs=1e-12)
