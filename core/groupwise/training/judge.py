"""Judge: which completions are right, where a reward tells right from wrong."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise import processes
from groupwise.config.sections import EvaluationSection
from groupwise.rewards import Reward, Scores


class Judge:
    """Takes a reward's values for right or wrong, or finds that they are no such thing.

    A reward judges where `evaluation.accuracy` names it or `evaluation.threshold` is set. Otherwise
    it is the first, which may state by an attribute `judges` whether 1 means right. One that states
    nothing judges as long as it gives only 0 and 1: any other value shows that it measures (a
    length, a similarity), and from then on nothing is called right or wrong.
    """

    def __init__(self, settings: EvaluationSection, first: Reward) -> None:
        self.name = settings.accuracy or first.name
        self.threshold = 1.0 if settings.threshold is None else settings.threshold
        judges = getattr(first.target, "judges", None)
        if settings.accuracy is not None or settings.threshold is not None:
            judges = True
        self.is_stated = judges is not None
        self.measures = judges is False

    def look(self, scores: Scores) -> None:
        """Take note of further values."""
        if not self.is_stated and self.name in scores.names:
            values = scores.column(self.name)
            graded = (values != 0) & (values != 1) & ~values.isnan()
            self.measures = self.measures or bool(graded.any())

    def agree(self) -> None:
        """Take note of what the judges of all processes saw; all of them must call this."""
        self.measures = processes.any_process(self.measures)

    def right(self, scores: Scores) -> Tensor:
        """[B] float64: 1 for right completions, 0 for wrong ones.

        NaN where the reward does not apply, failed, is not among these scores, or measures.
        """
        if self.measures or self.name not in scores.names:
            return torch.full_like(scores.total, math.nan)
        values = scores.column(self.name)
        right = (values >= self.threshold - 1e-9).to(values.dtype)
        return right.masked_fill(values.isnan(), math.nan)

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "measures": self.measures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What was found out; what is stated now, or is another reward, goes before."""
        if not self.is_stated and state["name"] == self.name:
            self.measures = state["measures"]
