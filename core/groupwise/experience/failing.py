"""Failing: ends a run in which completions, or all calls of a reward, fail again and again."""

from collections.abc import Mapping

from groupwise.kit.errors import UserError

TIMES = 3
"""The run ends when the same failed so many times in a row."""


class Failing:
    """Counts steps and evaluations in a row in each of which too many completions failed, and steps
    in a row in each of which one reward failed on all that it judged.

    share: of completions that may fail, `train.max_failed`.

    A failed completion is left out and counted; a run goes on, since a later step may sample well,
    and a judge that does not answer may come back. But three times in a row the cause will not
    pass: weights that are not finite, a judge that is gone. A resumed run counts anew.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._times: dict[str, int] = {}
        self._messages: dict[str, str] = {}

    def sampled(self, failed: int, count: int, *, what: str, why: Mapping[str, str]) -> None:
        """Count a step or an evaluation; all processes pass the same numbers.

        what: names it; why: by cause, a sentence on the last failure, with its prompt.
        """
        times = self._count("", failed > self.share * count)
        reasons = "".join(f"\n  {reason}" for reason in why.values())
        self._messages[""] = (
            f"{what}: {failed} of {count} completions failed, and more than {self.share:.3g} of "
            f"them did in the last {times} steps and evaluations in a row (`train.max_failed`); "
            f"the last failures:{reasons}"
        )

    def judged(self, reward: str, *, failed: int, values: int, what: str, why: str) -> None:
        """Count a step in which a reward failed on so many completions and gave so many values; all
        processes pass the same numbers. A step in which it judged nothing does not count.

        what: names the step; why: a sentence on the last failure, with its prompt.
        """
        if not failed + values:
            return
        times = self._count(reward, not values)
        self._messages[reward] = (
            f"{what}: reward {reward!r} failed on every completion that it judged, in the last "
            f"{times} steps in a row: {why}. Once it is fixed, `groupwise resume` goes on from "
            f"there"
        )

    def check(self) -> None:
        """Raise UserError, on all processes alike, after `TIMES` such steps in a row."""
        for cause, times in self._times.items():
            if times >= TIMES:
                self._times = {}
                raise UserError(self._messages[cause])

    def _count(self, cause: str, has_failed: bool) -> int:
        self._times[cause] = times = self._times.get(cause, 0) + 1 if has_failed else 0
        return times
