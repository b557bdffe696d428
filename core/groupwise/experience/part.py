"""Part: groups that were drawn together, and their rewards."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from groupwise.record import Group
from groupwise.rewards import Scores
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.scoring import Scoring


@dataclass(eq=False)
class Part:
    """Complete groups in the order of their draws, of which a step takes some or all.

    scoring: of all of them, if it has begun; scores: what an earlier run has stored of them.
    """

    groups: Sequence[Group]
    scoring: Scoring | None = None
    scores: Scores | None = None
    numbers: Sequence[int] = field(init=False)
    """Of the draw of each row."""
    _is_counted: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.numbers = [group.number for group in self.groups for _ in group.judged]

    @property
    def is_scored(self) -> bool:
        """Whether its scoring has begun, or is known."""
        return self.scoring is not None or self.scores is not None

    def result(self, scorer: Scorer, step: int) -> Scores:
        """The scores of all groups, with the weights of a step; waits for the rewards."""
        if self.scoring is not None:
            return scorer.finish([self.scoring], step)
        assert self.scores is not None
        return scorer.weighted(self.scores, step)

    def take(self, taken: Collection[int], scorer: Scorer, step: int) -> Scores:
        """The scores of these groups; what is counted of the batch is in the first ones."""
        scores = self.of(taken, scorer, step)
        self._is_counted = True
        return scores

    def of(self, numbers: Collection[int], scorer: Scorer, step: int) -> Scores:
        """The scores of these groups as `take` returns them next."""
        scores = self.result(scorer, step)
        rows = torch.tensor([number in numbers for number in self.numbers], dtype=torch.bool)
        if not self._is_counted and bool(rows.all()):
            return scores
        selected = scores.select(rows)
        if self._is_counted:
            return selected
        return replace(
            selected,
            seconds=scores.seconds,
            metrics=scores.metrics,
            failures=scores.failures,
            failure_counts=scores.failure_counts,
        )
