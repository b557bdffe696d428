"""Judge: decides which completions are right, if a reward tells right from wrong."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise import processes
from groupwise.config.sections import EvaluationSection
from groupwise.rewards import Reward, Scores


class Judge:
    """Decides by one reward's values which completions are right, or that it only measures.

    The reward is that of `evaluation.accuracy`, else the first. It tells right from wrong if
    `evaluation.accuracy` or `evaluation.threshold` is set, or its member `judges` is True.
    Without it, the reward does so as long as it gives only 0 and 1: any other value shows
    that it measures something (a length, a similarity), and from then on no completion is right or
    wrong. Weighted prompts and replay could not go on then, so they need a reward of which this
    `is_stated`, by the configuration or the member: no value changes it, and one below the
    threshold is wrong.
    """

    def __init__(self, settings: EvaluationSection, first: Reward) -> None:
        self.name = settings.accuracy or first.name
        self.threshold = 1.0 if settings.threshold is None else settings.threshold
        judges = first.members.judges
        if settings.accuracy is not None or settings.threshold is not None:
            judges = True
        self.is_stated = judges is not None
        self.is_graded = judges is False

    def observe(self, scores: Scores) -> None:
        """Check further values for others than 0 and 1."""
        if not self.is_stated and self.name in scores.names:
            values = scores.column(self.name)
            graded = (values != 0) & (values != 1) & ~values.isnan()
            self.is_graded = self.is_graded or bool(graded.any())

    def agree(self) -> None:
        """Set `is_graded` if it is set on any process. A collective."""
        self.is_graded = processes.any_process(self.is_graded)

    def right(self, scores: Scores) -> Tensor:
        """[B] float64: 1 for right completions, 0 for wrong ones, NaN if not judged.

        Not judged are completions to which the reward does not apply or on which it failed, and all
        if the reward only measures or is not among these scores.
        """
        if self.is_graded or self.name not in scores.names:
            return torch.full_like(scores.total, math.nan)
        values = scores.column(self.name)
        right = (values >= self.threshold - 1e-9).to(values.dtype)
        return right.masked_fill(values.isnan(), math.nan)

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "measures": self.is_graded}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load whether the reward measures, unless that is configured, or it is another reward."""
        if not self.is_stated and state["name"] == self.name:
            self.is_graded = state["measures"]
