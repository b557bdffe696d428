"""Accuracy: which reward tells right completions from wrong ones, and from which value on."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from groupwise.config.sections import EvaluationSection
from groupwise.kit.errors import UserError
from groupwise.rewards import Reward, Scores


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Which reward is the accuracy: a completion is right where it is at least `threshold`.

    That is the reward which `evaluation.accuracy` names, else the first one that says that it
    judges (`Members.judges`), among those trained on before those only watched. A reward that does
    not say so is none, whatever its values are: a format may be 0 or 1, too. With
    `evaluation.threshold` the only reward of a run need not say it.

    name: the reward's, None if there is no accuracy; others: further rewards that judge; silent:
    rewards that do not say whether they judge, if none does.
    """

    name: str | None = None
    threshold: float = 1.0
    others: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, settings: EvaluationSection, trained: Sequence[Reward], watched: Iterable[Reward] = ()
    ) -> Self:
        """That of a run. Raises UserError for a threshold of which the reward is not known.

        watched: without those of which lower is better.
        """
        threshold = 1.0 if settings.threshold is None else settings.threshold
        if settings.accuracy is not None:
            return cls(name=settings.accuracy, threshold=threshold)
        measures = [*trained, *watched]
        judging = [reward.name for reward in measures if reward.members.judges]
        if judging:
            return cls(name=judging[0], threshold=threshold, others=tuple(judging[1:]))
        if settings.threshold is None:
            silent = (reward.name for reward in measures if reward.members.judges is None)
            return cls(silent=tuple(silent))
        if len(trained) > 1:
            names = ", ".join(reward.name for reward in trained)
            raise UserError(
                f"evaluation.threshold: no reward says that it tells right from wrong, so it is "
                f"not known of which one this is the least value of a right completion: set "
                f"evaluation.accuracy to one of {names}"
            )
        return cls(name=trained[0].name, threshold=threshold)

    @property
    def note(self) -> str | None:
        """What a user may want to know, or change, about the choice; None if it is plain."""
        if self.others:
            every = ", ".join(map(repr, (self.name, *self.others)))
            return (
                f"accuracy is that of reward {self.name!r}, the first of {1 + len(self.others)} "
                f"that tell right from wrong ({every}); evaluation.accuracy names another"
            )
        if self.silent:
            name = self.silent[0]
            return (
                f"there is no accuracy, since no reward says that it tells right from wrong; if 1 "
                f"of {name!r} means right, set evaluation.accuracy: {name}, or give it the "
                f"attribute `judges = True` (`judges = False`: it measures, and this note is not "
                f"shown)"
            )
        return None

    def right(self, scores: Scores) -> Tensor:
        """[B] float64: 1 for right completions, 0 for wrong ones, NaN if not judged.

        Not judged are completions to which the reward does not apply or on which it failed, and all
        if there is no accuracy or its reward is not among these scores.
        """
        if self.name not in scores.names:
            return torch.full_like(scores.total, math.nan)
        return scores.at_least(self.name, self.threshold)
