"""Environment programs: what an episode asks of its players, as data that hypothesis can draw."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from tests.core.numbered import number_of

from groupwise.environment import Environment, Reply


@dataclass(frozen=True)
class Ask:
    """A call of a player; grouped: for candidates; after: how many replies back the one is that it
    follows; on: that of its own whose context it goes on in, of a player without turns the one that
    is its context."""

    player: int = 0
    grouped: bool = False
    after: int | None = None
    on: int | None = None


@dataclass(frozen=True)
class Together:
    """Branches at the same time."""

    branches: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Again:
    """Steps that are repeated, up to twice, until the last reply begins with 0."""

    steps: tuple[Any, ...]


@dataclass(frozen=True)
class Either:
    """The first steps or the others, by the row or by the last reply."""

    by_row: bool
    steps: tuple[Any, ...]
    others: tuple[Any, ...]


def steps_of(asks: st.SearchStrategy[Ask], *, together: bool) -> st.SearchStrategy[Any]:
    """Programs of these calls; together: whether some of them have branches."""
    some = st.lists(asks, min_size=1, max_size=2).map(tuple)
    kinds = [
        *(asks, asks),
        st.builds(Again, some),
        st.builds(Either, st.booleans(), some, some),
    ]
    if together:
        kinds.append(st.builds(Together, st.lists(some, min_size=2, max_size=3).map(tuple)))
    return st.lists(st.one_of(*kinds), min_size=1, max_size=3).map(tuple)


BACK = st.none() | st.integers(0, 3)
PLAYERS = st.integers(0, 1)
ANY = steps_of(st.builds(Ask, PLAYERS, st.booleans(), BACK, BACK), together=True)
LATEST = st.none() | st.just(0)
IN_TURN = steps_of(st.builds(Ask, PLAYERS, st.just(False), LATEST, LATEST), together=False)
"""Programs without candidates, whose calls are made and follow one after the other."""


@dataclass(eq=False)
class Asked:
    """A call as the episode made it.

    play: the episode's number; draw: its row's; place: the call's in the program; fresh: whether it
    begins a context; parallel: whether other branches of the program run beside it; candidates:
    those that it follows, by their numbers; numbers: of the first decision of each completion.
    """

    play: int
    draw: int
    label: str
    place: str
    grouped: bool
    fresh: bool
    parallel: bool
    candidates: tuple[int, ...] = ()
    numbers: list[int] = field(default_factory=list)


class Program(Environment):
    """Plays a program, and notes what it asks for.

    apart: whether each player has a cast of its own; talkers: the players whose contexts can go on;
    judges_last: whether `play` returns its last reply, to be judged alone; asked: all calls; plays,
    ended: how many episodes have begun, and how many have ended without an error.
    """

    def __init__(
        self,
        steps: Sequence[Any],
        *,
        apart: bool = False,
        talkers: Sequence[str] = ("turns",),
        judges_last: bool = True,
    ) -> None:
        self.steps, self.apart, self.talkers = steps, apart, talkers
        self.judges_last = judges_last
        self.asked: list[Asked] = []
        self.plays = self.ended = 0

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return {label: [label] for label in labels} if self.apart else super().casts(labels)

    async def play(self, row, players):
        play = _Play(self, row, players, self.plays)
        self.plays += 1
        replies = await play.run(self.steps, "", [], parallel=False)
        self.ended += 1
        return [(replies[-1], {})] if self.judges_last else None


class Asks(Environment):
    """Plays what a function of the row and the players asks; judges: the players that rewards
    judge, if not all."""

    def __init__(self, function: Callable[..., Any], judges: Sequence[str] = ()) -> None:
        self.function, self.judges = function, judges

    def judged(self, labels: Sequence[str]) -> Sequence[str]:
        return self.judges or labels

    async def play(self, row, players):
        return await self.function(row, *players.values())


@dataclass
class _Play:
    program: Program
    row: Mapping[str, Any]
    players: Mapping[str, Any]
    number: int
    contexts: dict[int, str] = field(default_factory=dict)
    candidates: dict[int, tuple[int, ...]] = field(default_factory=dict)

    async def run(
        self, steps: Sequence[Any], place: str, replies: list[Reply], *, parallel: bool
    ) -> list[Reply]:
        """Plays steps after these replies; returns those replies and its own."""
        for at, step in enumerate(steps):
            here = f"{place}/{at}"
            match step:
                case Ask():
                    replies = [*replies, *await self.ask(step, here, replies, parallel=parallel)]
                case Together(branches):
                    runs = (
                        self.run(own, f"{here}{'abc'[n]}", replies, parallel=True)
                        for n, own in enumerate(branches)
                    )
                    ends = await asyncio.gather(*runs)
                    replies = replies + [each for own in ends for each in own[len(replies) :]]
                case Again(inner):
                    for turn in range(2):
                        replies = await self.run(
                            inner, f"{here}x{turn}", replies, parallel=parallel
                        )
                        if replies[-1].text.startswith("0"):
                            break
                case Either(by_row, first, others):
                    odd = (
                        self.row["id"] % 2
                        if by_row or not replies
                        else "1" in replies[-1].text.partition("#")[0]
                    )
                    replies = await self.run(
                        first if odd else others, f"{here}{bool(odd)}", replies, parallel=parallel
                    )
        return replies

    async def ask(
        self, step: Ask, place: str, replies: list[Reply], *, parallel: bool
    ) -> list[Reply]:
        label = [*self.players][step.player % len(self.players)]
        player = self.players[label]
        after = None if step.after is None or not replies else back(replies, step.after)
        goes_on, context, text = False, None, f"{self.row['prompt']} at {place},"
        if step.on is not None and label in self.program.talkers:
            if own := [reply for reply in replies if reply.label == label]:
                earlier = back(own, step.on)
                before = self.contexts[number_of(earlier.text)]
                goes_on, text = True, f"{before}{earlier.text} go on at {place},"
        elif step.on is not None and replies and not parallel:
            context = back(replies, step.on)
        before = after or context or (replies[-1] if replies else None)
        asked = Asked(
            candidates=() if before is None else self.candidates[number_of(before.text)],
            play=self.number,
            draw=self.row["draw"],
            label=label,
            place=place,
            grouped=step.grouped,
            fresh=not goes_on,
            parallel=parallel,
        )
        self.program.asked.append(asked)
        if step.grouped:
            answers = [*await player.group(context or text, after=after)]
        else:
            answers = [await player(context or text, after=after)]
        asked.numbers = [number_of(reply.text) for reply in answers]
        self.contexts |= dict.fromkeys(asked.numbers, text)
        for number in asked.numbers:
            own = (number,) if step.grouped else ()
            self.candidates[number] = (*asked.candidates, *own)
        return answers


def back(replies: Sequence[Reply], count: int) -> Reply:
    return replies[-1 - count % len(replies)]


def rows(count: int, first: int = 0) -> dict[int, dict[str, Any]]:
    """Rows by the numbers of their draws, from `first` on."""
    return {
        first + n: {"prompt": f"question {n}", "id": n, "draw": first + n} for n in range(count)
    }
