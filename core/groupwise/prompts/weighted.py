"""Weighted: prompts of middling success are drawn again, settled ones rest."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from groupwise.prompts.draws import Draw, Prompts
from groupwise.prompts.outcomes import RESTING, UNSEEN, Outcome, Outcomes, worth
from groupwise.prompts.seeds import seed_for
from groupwise.prompts.source import PromptSource, Row


@dataclass(frozen=True, kw_only=True)
class _Due:
    """A draw whose outcome is not known yet: its question's hash, its row, how it was chosen."""

    key: int
    index: int
    again: bool


class Weighted(Prompts):
    """Draws in the seeded order, and again what is worth more than a prompt never seen.

    A draw is the next of the order with probability `explore`; questions that are worth less than
    half of an unseen one, as the same came of all their completions, are passed over there until
    that has faded. Otherwise it is one of the known questions that are worth more than an unseen
    one, with a probability in proportion to what they are worth, and not before its last outcome is
    known; where there is none, the next of the order.

    half_life: draws after which an outcome counts half; size: questions remembered.

    Its whole state is that of `Prompts`, and `outcomes`. What is drawn is a function of these and
    of the seed.
    """

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
        self._due: dict[int, _Due] = {}

    def take(self, count: int) -> list[Draw]:
        coins = torch.rand(count, generator=self._generator("explore"), dtype=torch.float64)
        again = self._again(count)
        draws = []
        for coin in coins.tolist():
            known = next(again, None) if coin >= self.explore else None
            index, row = known or self._in_order()
            draw = self._draw(row)
            self._due[draw.number] = _Due(key=self._key_of(row), index=index, again=bool(known))
            draws.append(draw)
        return draws

    def rests(self, row: Row) -> bool:
        return worth(*self.outcomes.of(self._key_of(row), self.drawn)) < RESTING

    def observe(self, outcomes: Mapping[int, Outcome]) -> dict[str, float]:
        """Take note of what came of draws, by their numbers, on all processes alike.

        Returns what can be said of the draws, and of all questions that are known.
        """
        draws = [(self._due[number], outcomes[number]) for number in sorted(outcomes)]
        # Of a draw before these that is not among them nothing will be known.
        self._due = {n: due for n, due in self._due.items() if n > max(outcomes, default=-1)}
        fresh = [outcome for due, outcome in draws if due.key not in self.outcomes]
        expected = [_rate(*self.outcomes.of(due.key, self.drawn)) for due, _ in draws]
        for due, outcome in draws:
            if outcome.judged:
                self.outcomes.add(due.key, due.index, outcome, self.drawn)
        judged = sum(outcome.judged for outcome in fresh)
        accuracy = {"prompts/new_accuracy": sum(o.right for o in fresh) / judged} if judged else {}
        return {
            "prompts/again": sum(due.again for due, _ in draws) / max(1, len(draws)),
            "prompts/expected": sum(expected) / max(1, len(draws)),
            **accuracy,
            **self._known(),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**self.place, "outcomes": self.outcomes.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.outcomes.load_state_dict(state.get("outcomes", {}))
        self._due = {}

    def _again(self, count: int) -> Iterator[tuple[int, Row]]:
        """Known questions to draw again, each once, at random by what they are worth."""
        keys = self.outcomes.column("keys")
        due = torch.tensor([due.key for due in self._due.values()], dtype=torch.int64)
        value = worth(*self.outcomes.counts(self.drawn))
        value[(value <= UNSEEN) | torch.isin(keys, due)] = 0.0
        # The first of exponential arrivals at these rates are draws without replacement; Efraimidis
        # and Spirakis, "Weighted random sampling with a reservoir", 2006.
        arrivals = torch.rand(len(value), generator=self._generator("again"), dtype=torch.float64)
        arrivals = -torch.log1p(-arrivals) / value
        most = min(count, int((value > 0).sum()))
        for place in arrivals.topk(most, largest=False).indices.tolist():
            index = int(self.outcomes.column("rows")[place])
            # A run that is gone on with may have other rows, hold out or skip others.
            row = self._row(index) if index < len(self.source) else None
            if row is None or self._key_of(row) != int(keys[place]):
                continue
            if not self.is_held_out(row) and not self.skips(row):
                yield index, row

    def _known(self) -> dict[str, float]:
        """Shares of the known questions by what came of their completions as far as remembered."""
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
        """What the row asks, as 63 bits."""
        digest = hashlib.blake2b(self.question(row).encode(errors="surrogatepass"), digest_size=8)
        return int.from_bytes(digest.digest(), "big") >> 1

    def _generator(self, space: str) -> torch.Generator:
        return torch.Generator().manual_seed(seed_for(self.seed, space, self.drawn, 0))


def _rate(right: float, judged: float) -> float:
    """The expected success rate by a uniform prior."""
    return (1 + right) / (2 + judged)
