"""Failing: ends a run in which most completions fail again and again."""

from collections.abc import Mapping

from groupwise.errors import UserError

TIMES = 3
"""The run ends when most completions failed so many times in a row."""


class Failing:
    """Counts steps and evaluations in a row in each of which more than half of completions failed.

    A failed completion is left out and counted; a run goes on, since a later step may sample well,
    and a judge that does not answer may come back. But if most fail three times in a row, the cause
    will not pass: weights that are not finite, a judge that is gone. A resumed run counts anew.
    """

    def __init__(self) -> None:
        self.times = 0
        self.message = ""

    def sampled(self, failed: int, count: int, *, what: str, why: Mapping[str, str]) -> None:
        """Count a step or an evaluation; all processes pass the same numbers.

        what: names it; why: by cause, a sentence on the last failure, with its prompt.
        """
        self.times = self.times + 1 if 2 * failed > count else 0
        reasons = "".join(f"\n  {reason}" for reason in why.values())
        self.message = (
            f"{what}: {failed} of {count} completions failed, and more than half did in the last "
            f"{self.times} steps and evaluations in a row, so there is hardly anything to learn "
            f"from; the last failures:{reasons}"
        )

    def check(self) -> None:
        """Raise UserError, on all processes alike, after `TIMES` such steps in a row."""
        if self.times >= TIMES:
            self.times = 0
            raise UserError(self.message)
