"""Checks of environments: each law holds for a toy and fails for one that breaks it."""

import asyncio
import re
from random import Random

import pytest

from groupwise import testing
from groupwise.environment import Environment
from groupwise_testing import environment as environment_checks

ROWS = [{"prompt": "one"}, {"prompt": "two"}, {"prompt": [{"role": "user", "content": "three"}]}]


def player(prompt, random):
    return random.choice(["a", "b", "c"])


class Talk(Environment):
    """Two turns, the second after the first one's text."""

    turns = 2

    def columns(self, labels):
        return ["first"]

    async def play(self, row, players):
        replies = [await players["writer"](row)]
        for _ in range(self.turns - 1):
            replies.append(await players["writer"](replies[-1].text))
        return {"first": replies[0].text}


class Endless(Talk):
    turns = 1000


class JudgesNothing(Talk):
    def judged(self, labels):
        return []


class Raises(Talk):
    async def play(self, row, players):
        await players["writer"](row)
        raise ZeroDivisionError("a slip")


class MoreColumns(Talk):
    async def play(self, row, players):
        return {**await super().play(row, players), "second": 2}


class Counts(Talk):
    count = 0

    async def play(self, row, players):
        self.count += 1
        return {"first": (await players["writer"](f"question {self.count}")).text + str(self.count)}


class CatchesAll(Talk):
    async def play(self, row, players):
        try:
            return await super().play(row, players)
        except Exception as error:
            raise RuntimeError("something went wrong") from error


class CannotClose(Talk):
    async def close(self):
        raise RuntimeError("it was never opened")


class Helps(Talk):
    def shown(self, text):
        """Has the name of a method of Environment."""
        return text[:80]


ENVIRONMENTS = [
    ("methods with the names of an Environment's are an Environment's", Helps),
    ("every episode ends, and its last completions are judged", Endless),
    ("every episode ends, and its last completions are judged", JudgesNothing),
    ("every episode ends, and its last completions are judged", Raises),
    ("`columns` names what `play` returns", MoreColumns),
    ("an episode depends on its row and its players' completions alone", Counts),
    (
        "a completion that failed, and a context that is refused, end an episode and nothing else",
        CatchesAll,
    ),
    ("`close` can be called", CannotClose),
]


def test_correct_environments_satisfy_all_laws():
    testing.check_environment(Talk(), ROWS, {"writer": player})
    names = dict.fromkeys(name for name, _ in ENVIRONMENTS)
    assert [*names] == [law.name for law in environment_checks.LAWS]


@pytest.mark.parametrize(("name", "kind"), ENVIRONMENTS)
@pytest.mark.slow(after=1)
def test_an_environment_that_breaks_a_law_fails_its_check(name, kind):
    with pytest.raises(AssertionError, match=f'breaks the law "{re.escape(name)}": '):
        testing.check_environment(kind(), ROWS, {"writer": player})


def failure_of(play):
    kind = type("Faulty", (Talk,), {"play": play})
    with pytest.raises(AssertionError) as failed:
        testing.check_environment(kind(), ROWS, {"writer": player})
    return str(failed.value)


def test_a_check_says_what_failed_before_any_completion():
    async def uncalled(self, row, players):
        return {"first": players["writer"].text}

    assert "'Counted' object has no attribute 'text' (line " in failure_of(uncalled)


def test_an_episode_without_an_end_is_stopped():
    async def endless(self, row, players):
        while True:
            await players["writer"](row)

    assert "called its players more than 200 times" in failure_of(endless)


def test_players_of_a_check_take_a_limit():
    class Limited(Talk):
        async def play(self, row, players):
            return {"first": (await players["writer"](row, limit=5)).text}

    testing.check_environment(Limited(), ROWS, {"writer": player})


def test_chance_by_the_seed_keeps_the_laws():
    class Chance(Talk):
        async def play(self, row, players, seed=None):
            return {"first": (await players["writer"](f"roll {Random(seed).random()}")).text}

    testing.check_environment(Chance(), ROWS, {"writer": lambda prompt, _: prompt})


def test_an_environment_keeps_its_event_loop_for_a_whole_check():
    """As in a run, so that it can hold an async client."""

    class Connected(Talk):
        def __init__(self):
            self.loops = set()

        async def play(self, row, players):
            self.loops.add(asyncio.get_running_loop())
            return await super().play(row, players)

    environment = Connected()
    testing.check_environment(environment, ROWS, {"writer": player})
    assert len(environment.loops) == 1


def test_fewer_than_two_rows_are_refused():
    with pytest.raises(ValueError, match="check_environment: needs two rows or more, received 1"):
        testing.check_environment(Talk(), ROWS[:1], {"writer": player})
