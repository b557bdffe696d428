"""How evenly servers are busy, by their turn as before and by least load, on a simulated clock.

    python tests/benchmarks/load.py

Groups of 16. Lengths are exponential, cut, and correlated within a group: the mean of a prompt is
itself lognormal. Servers are of one GPU with a model of 7B: a step of decoding takes 4.5 ms for the
weights and 60 microseconds a row, of which it has at most 256; a token of a prompt 28 microseconds,
unless the server has it in its cache. Each process sees its own requests alone. Means of 5 seeds of

- busiest: the tokens that the busiest server draws, over the mean of all servers;
- seconds from the first request to the last answer;
- contexts computed: tokens that servers compute since they have them in no cache, now over before.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from statistics import mean

from groupwise_llm.vllm.load import Load
from groupwise_llm.vllm.request import part

WEIGHTS, ROW, PROMPT_TOKEN, ROWS = 4.5e-3, 60e-6, 28e-6, 256
SIZE, SEEDS = 16, 5
LENGTHS = {"1.5k, cut at 4k": (1500, 4096, 0.5), "6k, cut at 32k": (6000, 32768, 0.6)}
REPLY, THINKS, TURNS = 300, 2.0, 12
"""Tokens of a tool's reply, its mean seconds, and the most turns of an episode."""
ROUNDS = 6
"""Groups after each other in a stream."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A request. lengths: of its completions; context: tokens before them, of which the first
    `shared` are those of the group; number: among the requests of all processes; before, after: of
    an episode's turn, the numbers of the contexts that it goes on from, and that it makes; then:
    seconds from its answer to the next request, and that."""

    process: int
    group: int
    lengths: Sequence[float]
    context: float
    shared: float
    number: int
    before: int | None = None
    after: int | None = None
    then: "tuple[float, Asked] | None" = None

    @property
    def begun(self) -> int | None:
        """The context of which a server may have a cache; None of completions of a single turn."""
        return self.group if self.before is None and self.after is not None else self.before


@dataclass(eq=False)
class Engine:
    """A server. progress: tokens that a row drawn since the start would have."""

    now: float = 0.0
    progress: float = 0.0
    prefill: float = 0.0
    drawn: float = 0.0
    computed: float = 0.0
    rows: list[tuple[float, int, Asked]] = field(default_factory=list)
    waiting: deque[tuple[float, Asked]] = field(default_factory=deque)
    cached: set[object] = field(default_factory=set)
    plan: int = 0

    def reach(self, now: float) -> None:
        passed, self.now = now - self.now, now
        computing = min(self.prefill, passed)
        self.prefill -= computing
        if self.rows:
            self.progress += (passed - computing) / (WEIGHTS + ROW * len(self.rows))

    def add(self, asked: Asked) -> None:
        known = asked.shared if asked.group in self.cached else 0.0
        if asked.before is not None and asked.before in self.cached:
            known = asked.context - REPLY
        self.cached |= {asked.group, asked.after} - {None}
        self.prefill += (asked.context - known) * PROMPT_TOKEN
        self.computed += asked.context - known
        self.drawn += sum(asked.lengths)
        self.waiting += [(length, asked) for length in asked.lengths]
        self.fill()

    def fill(self) -> None:
        while self.waiting and len(self.rows) < ROWS:
            length, asked = self.waiting.popleft()
            heapq.heappush(self.rows, (self.progress + length, id(asked), asked))

    def next_end(self) -> float:
        left = max(0.0, self.rows[0][0] - self.progress)
        return self.now + self.prefill + left * (WEIGHTS + ROW * len(self.rows))

    def ended(self) -> Iterator[Asked]:
        while self.rows and self.rows[0][0] <= self.progress + 1e-6:
            yield heapq.heappop(self.rows)[2]
        self.fill()


Shape = tuple[int, int, float]
"""Of lengths: the mean, the cut, and the spread of prompts."""
Figures = tuple[float, float, float]
Choose = Callable[[Asked], int]
Way = Callable[[int], tuple[Choose, Callable[[Asked, int], None]]]
"""Of so many servers: the choice of one for a request, and what is told when it has answered."""


class Clock:
    """Runs the servers until everything is answered."""

    def __init__(self, servers: int, way: Way) -> None:
        self.engines = [Engine() for _ in range(servers)]
        self.choose, self.release = way(servers)
        self.now, self._ticks = 0.0, count()
        self._events: list[tuple[float, int, int, Asked | None]] = []
        self._places: dict[Asked, int] = {}
        self._open: dict[Asked, int] = {}

    def run(self, begin: Sequence[Asked]) -> Figures:
        """Busiest over the mean, seconds, and tokens of contexts that were computed."""
        for asked in begin:
            self._send(asked)
        while self._events:
            self.now, tick, place, next_one = heapq.heappop(self._events)
            if next_one is not None:
                self._send(next_one)
            elif tick == self.engines[place].plan:  # else more has begun or ended since
                self._end(place)
        drawn = [engine.drawn for engine in self.engines]
        computed = sum(engine.computed for engine in self.engines)
        return max(drawn) / mean(drawn), self.now, computed

    def _send(self, asked: Asked) -> None:
        place = self._places[asked] = self.choose(asked)
        self._open[asked] = len(asked.lengths)
        self.engines[place].reach(self.now)
        self.engines[place].add(asked)
        self._plan(place)

    def _end(self, place: int) -> None:
        self.engines[place].reach(self.now)
        for asked in self.engines[place].ended():
            self._open[asked] -= 1
            if not self._open[asked]:
                self.release(asked, self._places[asked])
                if asked.then is not None:
                    seconds, following = asked.then
                    self._at(self.now + seconds, 0, following)
        self._plan(place)

    def _plan(self, place: int) -> None:
        engine = self.engines[place]
        if engine.rows:
            engine.plan = self._at(engine.next_end(), place, None)

    def _at(self, when: float, place: int, asked: Asked | None) -> int:
        tick = next(self._ticks)
        heapq.heappush(self._events, (when, tick, place, asked))
        return tick


def by_turn(servers: int) -> tuple[Choose, Callable[[Asked, int], None]]:
    return lambda asked: asked.number % servers, lambda *_: None


def by_hash(servers: int) -> tuple[Choose, Callable[[Asked, int], None]]:
    return lambda asked: random.Random(asked.group).randrange(servers), lambda *_: None


def by_load(servers: int) -> tuple[Choose, Callable[[Asked, int], None]]:
    loads: dict[int, Load[int]] = {}

    def choose(asked: Asked) -> int:
        load = loads.setdefault(asked.process, Load())
        place = load.take(
            dict.fromkeys(range(servers), 1),
            len(asked.lengths),
            turn=asked.number,
            context=asked.begun,
        )
        if asked.after is not None:
            load.remember(asked.after, place)
        return place

    def release(asked: Asked, place: int) -> None:
        loads[asked.process].release(place, len(asked.lengths))

    return choose, release


# ---- what is asked


def completions(
    groups: int, processes: int, lengths: Shape, prompt: int, size: int, seed: int
) -> list[Asked]:
    """Those of a step, in parts of `size`."""
    asked, parts = list[Asked](), math.ceil(SIZE / size)
    for group, own in enumerate(_lengths(seed, groups, *lengths)):
        for place in range(parts):
            drawn = own[place * size : (place + 1) * size]
            number = group * parts + place
            asked.append(Asked(group % processes, group, drawn, prompt, prompt, number))
    return asked


def stream(groups: int, processes: int, lengths: Shape, prompt: int, seed: int) -> list[Asked]:
    """Whole groups, of which always so many are in flight: each is followed by another one."""
    drawn = [*enumerate(_lengths(seed, groups * ROUNDS, *lengths))]
    following: dict[int, Asked] = {}
    for group, own in reversed(drawn):
        then = following.get(group + groups)
        following[group] = Asked(
            *(group % processes, group, own, prompt, prompt, group),
            then=None if then is None else (0.0, then),
        )
    return [following[group] for group in range(groups)]


def episodes(groups: int, processes: int, prompt: int, seed: int) -> list[Asked]:
    """The first turns of all episodes; how many follow depends on the group."""
    random_, first = random.Random(seed), list[Asked]()
    for group in range(groups):
        average, scale = random_.uniform(2, 10), 400 * random_.lognormvariate(-0.125, 0.5)
        for member in range(SIZE):
            number = min(TURNS, 1 + int(random_.expovariate(1 / average)))
            lengths = [min(2048, max(16, random_.expovariate(1 / scale))) for _ in range(number)]
            contexts = [prompt + sum(lengths[:n]) + n * REPLY for n in range(number)]
            begin = groups + (group * SIZE + member) * TURNS
            asked: Asked | None = None
            for turn in reversed(range(number)):
                asked = Asked(
                    *(group % processes, group, lengths[turn : turn + 1], contexts[turn], prompt),
                    number=group + processes * member,
                    before=begin + turn - 1 if turn else None,
                    after=begin + turn,
                    then=None if asked is None else (random_.expovariate(1 / THINKS), asked),
                )
            assert asked is not None
            first.append(asked)
    return first


def _lengths(seed: int, groups: int, length: int, cut: int, spread: float) -> Iterator[list[float]]:
    random_ = random.Random(seed)
    for _ in range(groups):
        scale = length * random_.lognormvariate(-(spread**2) / 2, spread)
        yield [min(cut, max(16, random_.expovariate(1 / scale))) for _ in range(SIZE)]


# ---- tables


def table(title: str, lines: Iterable[tuple[str, Sequence[Figures]]]) -> None:
    print(f"\n| {title} | busiest | seconds | contexts computed |\n|---|---|---|---|")
    for name, (before, now) in lines:
        busiest, seconds, computed = zip(before, now, strict=True)
        print(
            f"| {name} | {busiest[0]:.2f}, {busiest[1]:.2f} | {seconds[0]:.0f}, {seconds[1]:.0f} | "
            f"{computed[1] / computed[0]:.2f} times |",
            flush=True,
        )


def means(servers: int, way: Way, asked: Callable[[int], list[Asked]]) -> Figures:
    runs = [Clock(servers, way).run(asked(seed)) for seed in range(SEEDS)]
    busiest, seconds, computed = (mean(column) for column in zip(*runs, strict=True))
    return busiest, seconds, computed


def steps() -> Iterator[tuple[str, Sequence[Figures]]]:
    for (servers, processes, groups), (name, lengths), prompt in product(
        ((8, 8, 128), (64, 8, 512), (64, 64, 48)), LENGTHS.items(), (200, 4000)
    ):
        of_process = math.ceil(groups / processes)
        own = part(
            SIZE, prompt / lengths[1], groups=of_process, processes=processes, servers=servers
        )
        shape = (groups, processes, lengths, prompt)
        before = means(servers, by_turn, partial(completions, *shape, SIZE))
        now = means(servers, by_load, partial(completions, *shape, own))
        where = f"{servers} servers, {processes} processes, {groups} groups"
        yield f"{where}, {name}, prompt {prompt}: in parts of {own}", (before, now)


def streams() -> Iterator[tuple[str, Sequence[Figures]]]:
    for (servers, processes, groups), (name, lengths) in product(
        ((8, 8, 128), (64, 8, 512), (64, 64, 96)), LENGTHS.items()
    ):
        asked = partial(stream, groups, processes, lengths, 200)
        where = f"{servers} servers, {processes} processes, {groups} groups in flight"
        yield f"{where}, {name}", [means(servers, way, asked) for way in (by_turn, by_load)]


def turns() -> Iterator[tuple[str, Sequence[Figures]]]:
    for (servers, processes, groups), prompt in product(
        ((8, 8, 128), (64, 8, 512), (64, 64, 48)), (300, 3000)
    ):
        asked = partial(episodes, groups, processes, prompt)
        where = f"{servers} servers, {processes} processes, {groups} groups, prompt {prompt}"
        yield where, [means(servers, way, asked) for way in (by_hash, by_load)]


def main() -> None:
    table("a step: whole groups by turn, now by load", steps())
    table("a stream of whole groups: by turn, now by load", streams())
    table("episodes of several turns: by the prompt's hash, now by load", turns())


if __name__ == "__main__":
    main()
