"""WeightedPrompts: those of medium success are drawn again, those always right or wrong seldom."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from groupwise.prompt_source import PromptSource, Row
from groupwise.prompts.draws import Prompts
from groupwise.prompts.identity import identity
from groupwise.prompts.outcomes import RESTING, UNSEEN, Outcome, Outcomes, worth
from groupwise.record import Group
from groupwise.record.seeds import seed_for


class _Pending(NamedTuple):
    """A draw whose outcome is not known yet: hash of the question, row, whether it is a repeat."""

    key: int
    place: int
    again: bool


class WeightedPrompts(Prompts):
    """Draws new prompts in the seeded order, and repeats those that promise most to learn.

    The worth of a question is E[p (1 - p)] (`outcomes.worth`). With probability `explore` a draw is
    the next row of the order, passing over questions worth less than half of a new one (all their
    completions were right, or all wrong) until that result has faded. Otherwise it repeats a known
    question that is worth more than a new one, with probability proportional to its worth; one
    whose last outcome is still pending is left out, and if there is none, the next row is drawn.
    Rows with the same `key` are one question; without a key each row is one, since a prompt may
    have rows with different gold answers.

    half_life: draws after which an outcome counts half; size: questions to remember.

    Its whole state is that of `Prompts`, `outcomes` and what is pending; draws depend on it and on
    the seed alone.
    """

    observes = True

    def __init__(
        self,
        source: PromptSource,
        *,
        explore: float,
        half_life: float,
        size: int,
        **settings: Any,
    ) -> None:
        super().__init__(source, **settings)
        self.explore = explore
        self.outcomes = Outcomes(half_life=half_life, size=size)
        self._pending: dict[int, _Pending] = {}

    def take(self, count: int) -> list[Group]:
        coins = torch.rand(count, generator=self._generator("explore"), dtype=torch.float64)
        again = self._again(count)
        draws = []
        for coin in coins.tolist():
            known = next(again, None) if coin >= self.explore else None
            index, row = known or self._in_order()
            draw = self._draw(index, row)
            self._pending[draw.number] = _Pending(
                key=self._key_of(row), place=index, again=bool(known)
            )
            draws.append(draw)
        return draws

    def rests(self, row: Row) -> bool:
        return worth(*self.outcomes.of(self._key_of(row), self.drawn)) < RESTING

    def observe(
        self, outcomes: Mapping[int, Outcome], over: Collection[int] = ()
    ) -> dict[str, float]:
        """Add the outcomes of draws, by their numbers; all processes pass the same.

        Returns metrics of these draws and of all known questions.
        """
        draws = [(self._pending[number], outcomes[number]) for number in sorted(outcomes)]
        for number in {*outcomes, *over}:
            self._pending.pop(number, None)
        fresh = [outcome for draw, outcome in draws if draw.key not in self.outcomes]
        expected = [_rate(*self.outcomes.of(draw.key, self.drawn)) for draw, _ in draws]
        for draw, outcome in draws:
            if outcome.judged:
                self.outcomes.add(draw.key, draw.place, outcome, self.drawn)
        judged = sum(outcome.judged for outcome in fresh)
        accuracy = {"prompts/new_accuracy": sum(o.right for o in fresh) / judged} if judged else {}
        return {
            "prompts/again": sum(draw.again for draw, _ in draws) / max(1, len(draws)),
            "prompts/expected": sum(expected) / max(1, len(draws)),
            **accuracy,
            **self._known(),
        }

    def state_dict(self) -> dict[str, Any]:
        pending = [(number, *draw) for number, draw in self._pending.items()]
        return {**self.cursor, "outcomes": self.outcomes.state_dict(), "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.outcomes.load_state_dict(state.get("outcomes", {}))
        self._pending = {number: _Pending(*draw) for number, *draw in state.get("pending", ())}

    def _again(self, count: int) -> Iterator[tuple[int, Row]]:
        """Known questions to repeat, each once, at random in proportion to their worth."""
        keys = self.outcomes.column("keys")
        pending = torch.tensor([draw.key for draw in self._pending.values()], dtype=torch.int64)
        value = worth(*self.outcomes.counts(self.drawn))
        value[(value <= UNSEEN) | torch.isin(keys, pending)] = 0.0
        # Weighted draws without replacement: the smallest of exponential variables with these
        # rates; Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.
        arrivals = torch.rand(len(value), generator=self._generator("again"), dtype=torch.float64)
        arrivals = -torch.log1p(-arrivals) / value
        most = min(count, int((value > 0).sum()))
        for place in arrivals.topk(most, largest=False).indices.tolist():
            index = int(self.outcomes.column("rows")[place])
            # A resumed run may have other rows, and hold out or skip others.
            row = self.row(index) if index < len(self.source) else None
            if row is None or self._key_of(row) != int(keys[place]):
                continue
            if not self.is_held_out(row) and not self.skips(row):
                yield index, row

    def _known(self) -> dict[str, float]:
        """Shares of the known questions: always right, never right, and in between."""
        right, judged = self.outcomes.column("right"), self.outcomes.column("judged")
        count = max(1, len(self.outcomes))
        always, never = int((right == judged).sum()) / count, int((right == 0).sum()) / count
        return {
            "prompts/known": float(len(self.outcomes)),
            "prompts/always_right": always,
            "prompts/never_right": never,
            "prompts/between": 1.0 - always - never if len(self.outcomes) else 0.0,
        }

    def _key_of(self, row: Row) -> int:
        """A 63-bit hash of the row's question."""
        question = self.question(row) if self.has_key else identity(row)
        digest = hashlib.blake2b(question.encode(errors="surrogatepass"), digest_size=8)
        return int.from_bytes(digest.digest(), "big") >> 1

    def _generator(self, space: str) -> torch.Generator:
        return torch.Generator().manual_seed(seed_for(self.seed, space, self.drawn, 0))


def _rate(right: float, judged: float) -> float:
    """The expected success rate with a uniform prior."""
    return (1 + right) / (2 + judged)
