"""Ledger: which draws are begun and not yet trained, and which of them a step takes."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass
class Draw:
    """A draw of a prompt that is begun. version: of the weights that began it, the training steps
    done then; is_complete: whether all of its completions are drawn."""

    number: int
    version: int
    is_complete: bool = False


class Ledger:
    """The draws that are begun; each is then trained, or given up, exactly once.

    A step takes the first complete ones: the oldest version first, then the lowest number. None is
    dropped for its age: long completions take long, so that would favour short ones. It knows
    neither clock nor threads; equal calls on all processes leave them with equal ledgers.

    given_up: how many draws were given up so far.
    """

    def __init__(self) -> None:
        self._begun: dict[int, Draw] = {}
        self._taken: dict[int, Draw] = {}
        self._newest, self._anew = -1, set[int]()
        self.given_up = 0

    def __len__(self) -> int:
        """How many are begun, and neither trained nor given up."""
        return len(self._begun) + len(self._taken)

    def begin(self, numbers: Iterable[int], version: int) -> None:
        """Draws are numbered in order, but for those that are drawn anew. Raises ValueError for one
        that was begun before."""
        for number in numbers:
            if number <= self._newest and number not in self._anew:
                raise ValueError(f"draw {number} was begun before")
            self._anew.discard(number)
            self._newest = max(self._newest, number)
            self._begun[number] = Draw(number, version)

    def complete(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._begun[number].is_complete = True

    @property
    def is_idle(self) -> bool:
        """Whether all that is begun is complete."""
        return all(draw.is_complete for draw in self._begun.values())

    def has(self, count: int) -> bool:
        """Whether so many are complete and not taken."""
        return sum(draw.is_complete for draw in self._begun.values()) >= count

    def take(self, count: int) -> list[Draw]:
        """The draws of a step. Raises ValueError if there are fewer complete ones."""
        if not self.has(count):
            raise ValueError(f"fewer than {count} draws are complete")
        complete = (draw for draw in self._begun.values() if draw.is_complete)
        chosen = sorted(complete, key=lambda draw: (draw.version, draw.number))[:count]
        for draw in chosen:
            self._taken[draw.number] = self._begun.pop(draw.number)
        return chosen

    def give_up(self, numbers: Collection[int]) -> None:
        """The step does not train these, which it took: they teach nothing."""
        for number in numbers:
            del self._taken[number]
        self.given_up += len(numbers)

    def trained(self) -> None:
        """The step that took them is over."""
        self._taken.clear()

    @property
    def untrained(self) -> list[Draw]:
        """All draws that are begun and neither trained nor given up, in their order."""
        draws = {**self._begun, **self._taken}
        return [draws[number] for number in sorted(draws)]

    def restore(self, draws: Iterable[Draw], *, anew: Iterable[int], newest: int) -> None:
        """Draws of an earlier run, in their order, in place of all. anew: those that are to be
        begun once more; newest: the last one that it had begun."""
        self._begun, self._taken = {draw.number: draw for draw in draws}, {}
        self._newest, self._anew = newest, {*anew}
