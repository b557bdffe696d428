"""Seconds of a step with `train.ahead`: the run's own ledger on a simulated clock.

    python tests/benchmarks/scaling/stream.py

prints the table of docs/scaling.md in two minutes. Lengths are drawn, exponential with a mean of
each group's own; engines decode at the rates of steps.py, and serve groups in turn; training takes
as long as its tokens. Which groups are begun, and which a step trains, the ledger says.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import machines
import sizes
import steps
from machines import H100
from steps import TextBatch
from tables import TENSOR, table

from groupwise.experience.ledger import Ledger

SPREAD = 0.6
"""Of the logarithm of a group's mean length."""
WARM, MEASURED = 6, 8
"""Steps before the measurement, and in it."""
SHORT, LONG = TextBatch(), TextBatch(mean=6000, longest=32768)
CASES = [
    ("Qwen2.5-7B", 8, SHORT),
    ("Qwen2.5-7B", 64, SHORT),
    ("Qwen2.5-7B", 64, LONG),
    ("Qwen2.5-32B", 64, LONG),
    ("Qwen2.5-32B", 512, TextBatch(groups=512, mean=6000, longest=32768)),
]
DRAINED, AHEAD = (1, 2), (1, 2, 4)


@dataclass(frozen=True)
class Rates:
    """Of a model and a batch. first, each: an engine takes first + n x each seconds for a token of
    each of n sequences; most: sequences that it works on; tokens: that a GPU trains in a second;
    sync: seconds to send the weights."""

    first: float
    each: float
    most: int
    tokens: float
    sync: float

    @classmethod
    def of(cls, name: str, batch: TextBatch) -> "Rates":
        model, gpus = sizes.text(name), TENSOR[name]
        context = batch.prompt + batch.mean / 2
        most = steps.capacity(model, batch.prompt + batch.mean, gpus=gpus)
        one, all_of_them = (steps.decode(model, n, context, gpus=gpus) for n in (1, most))
        each = (all_of_them - one) / max(1, most - 1)
        work = 4 * model.forward(1, context)
        tokens = machines.TRAINING * H100.flops / work
        return cls(one - each, each, most, tokens, steps.sync(model.weights))


@dataclass
class Engine:
    """Decodes the sequences that it has, all at the same rate; others wait. done: tokens that a
    sequence would have which was there from the beginning; now: in seconds."""

    rates: Rates
    now: float = 0.0
    done: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)

    def add(self, group: int, length: int) -> None:
        if len(self.running) < self.rates.most:
            heappush(self.running, (self.done + length, group))
        else:
            self.waiting.append((group, length))

    @property
    def token(self) -> float:
        return self.rates.first + self.rates.each * len(self.running)

    @property
    def next(self) -> float:
        """When a sequence is complete next."""
        if not self.running:
            return math.inf
        return self.now + (self.running[0][0] - self.done) * self.token

    def advance(self, now: float) -> None:
        if self.running and now > self.now:
            self.done += (now - self.now) / self.token
        self.now = max(self.now, now)

    def pop(self) -> int:
        """The group of the sequence that is complete."""
        self.advance(self.next)
        end, group = heappop(self.running)
        self.done = end
        if self.waiting:
            self.add(*self.waiting.pop(0))
        return group


def lengths(seed: int, batch: TextBatch) -> Iterator[list[int]]:
    """Of the completions of one group after the other."""
    draws = random.Random(seed)
    while True:
        mean = batch.mean * math.exp(draws.gauss(-(SPREAD**2) / 2, SPREAD))
        drawn = (int(draws.expovariate(1 / mean)) for _ in range(batch.group_size))
        yield [min(batch.longest, max(16, length)) for length in drawn]


class Simulation:
    """A run on a simulated clock.

    engines: how many; gpus: that train; in_flight: whether weights are exchanged while requests
    run, or when none runs, as `Stream` does it.
    """

    def __init__(
        self,
        rates: Rates,
        batch: TextBatch,
        *,
        engines: int,
        gpus: int,
        ahead: int,
        in_flight: bool,
        seed: int = 0,
    ) -> None:
        self.rates, self.batch, self.gpus = rates, batch, gpus
        self.ahead, self.in_flight = ahead, in_flight
        self.engines = [Engine(rates) for _ in range(engines)]
        self.ledger, self.version, self.followed, self.now = Ledger(), 0, -1, 0.0
        self.lengths, self.begun = lengths(seed, batch), 0
        self.open: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        self.staleness: list[int] = []
        # When an engine has a complete sequence next; older entries of an engine are skipped.
        self.events: list[tuple[float, int, int]] = []
        self.stamps = [0] * engines

    def begin(self) -> None:
        """As many draws as there is room for, if the engines can follow the weights."""
        room = (self.ahead + 1) * self.batch.groups - len(self.ledger)
        can = self.in_flight or self.ledger.is_idle or self.followed == self.version
        if room <= 0 or not can:
            return
        for engine in self.engines:
            engine.advance(self.now)
        if self.followed != self.version:
            self.followed, self.now = self.version, self.now + self.rates.sync
            for engine in self.engines:  # nothing is decoded meanwhile
                engine.now = self.now
        numbers = range(self.begun, self.begun + room)
        self.begun += room
        self.ledger.begin(numbers, self.version)
        for number in numbers:
            own = next(self.lengths)
            self.open[number] = len(own)
            self.tokens[number] = sum(own) + self.batch.prompt * len(own)
            for length in own:
                self.engines[number % len(self.engines)].add(number, length)
        for place in range(len(self.engines)):
            self._note(place)

    def _note(self, place: int) -> None:
        self.stamps[place] += 1
        heappush(self.events, (self.engines[place].next, place, self.stamps[place]))

    @property
    def next(self) -> float:
        """When some engine has a complete sequence next."""
        while self.events[0][2] != self.stamps[self.events[0][1]]:
            heappop(self.events)
        return self.events[0][0]

    def draw(self) -> None:
        """Go on to the next complete sequence."""
        _, place, _ = heappop(self.events)
        group = self.engines[place].pop()
        self._note(place)
        self.open[group] -= 1
        if not self.open[group]:
            self.ledger.complete([group])

    def step(self) -> None:
        """Wait for the groups of a step, and train on them."""
        self.begin()
        while not self.ledger.has(self.batch.groups):
            self.now = max(self.now, self.next)
            self.draw()
            self.begin()
        draws = self.ledger.take(self.batch.groups)
        self.staleness += [self.version - draw.version for draw in draws]
        tokens = sum(self.tokens.pop(draw.number) for draw in draws)
        end = self.now + tokens / self.gpus / self.rates.tokens
        while self.next <= end:
            self.draw()
        self.now, self.version = end, self.version + 1
        self.ledger.trained()

    def seconds(self) -> float:
        """Of a step."""
        for _ in range(WARM):
            self.step()
        began, self.staleness = self.now, []
        for _ in range(MEASURED):
            self.step()
        return (self.now - began) / MEASURED


def shared(rates: Rates, batch: TextBatch, gpus: int, tensor: int) -> float:
    """Seconds of a step whose engines sleep on the GPUs that train."""
    of = {"engines": gpus // tensor, "gpus": gpus, "ahead": 0, "in_flight": False}
    return Simulation(rates, batch, **of).seconds() + machines.WAKE


def best(
    rates: Rates, batch: TextBatch, gpus: int, tensor: int, *, ahead: int, in_flight: bool
) -> tuple[float, Simulation]:
    """Seconds of a step with the fastest division of the GPUs among engines and training."""
    made = []
    for engines in sorted({max(1, gpus * part // 16 // tensor) for part in range(3, 15, 2)}):
        left = gpus - engines * tensor
        how = {"engines": engines, "gpus": left, "ahead": ahead, "in_flight": in_flight}
        simulation = Simulation(rates, batch, **how)
        made.append((simulation.seconds(), simulation))
    return min(made, key=lambda each: each[0])


def rows() -> Iterator[Sequence[object]]:
    for name, gpus, batch in CASES:
        rates, tensor = Rates.of(name, batch), TENSOR[name]
        alone = shared(rates, batch, gpus, tensor)
        drained = [best(rates, batch, gpus, tensor, ahead=k, in_flight=False) for k in DRAINED]
        flowing = [best(rates, batch, gpus, tensor, ahead=k, in_flight=True) for k in AHEAD]
        _, two = flowing[AHEAD.index(2)]
        engines = len(two.engines) * tensor
        yield [
            name,
            gpus,
            f"{batch.groups} x {batch.group_size}, {batch.mean:,} / {batch.longest:,}",
            f"{alone:.0f}",
            *(f"{seconds:.0f}" for seconds, _ in (*drained, *flowing)),
            f"{engines} + {gpus - engines}",
        ]


if __name__ == "__main__":
    head = ["model", "GPUs", "completions, tokens: mean / most", "shared GPUs"]
    drained = [f"drained, `ahead: {ahead}`" for ahead in DRAINED]
    flowing = [f"in flight, {ahead}" for ahead in AHEAD]
    print(table([*head, *drained, *flowing, "its engines + training at 2"], rows()))
