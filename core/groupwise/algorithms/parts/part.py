"""Part: what an algorithm is composed of."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Algorithm, Batch
from groupwise.policy import Policy
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.weights import KeptWeights

if TYPE_CHECKING:
    from groupwise.algorithms.parts.composed import Composed


class Options(BaseModel):
    """Base class of the options of a part."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part:
    """Fills in methods of an algorithm, which have the same names and arguments there.

    A part has its own options in a nested `Config`, and declares by attributes of `Algorithm` what
    it needs; the algorithm has the union. Call a method that a variant may override on `whole`.
    The methods here say what an algorithm does without such a part.
    """

    slot: ClassVar[str]
    """The argument of `Composed` that the part is for."""
    Config: ClassVar[type[Options]] = Options
    needs: frozenset[str] = frozenset()
    old: frozenset[str] = frozenset()
    reference: frozenset[str] = frozenset()
    target_inputs: frozenset[str] = frozenset()
    moves_reference: bool = False
    couples_decisions: bool = False
    refills: bool = False
    corrects: bool = False
    weight: float = 0.0
    """Of what it adds to the loss beside the surrogate."""
    length: int | None = None
    """Of a divisor: what `normalize: constant` divides by."""
    clip_high: float
    """Of a surrogate that clips: the range above 1."""

    def __init_subclass__(cls) -> None:
        if len({vars(base)["slot"] for base in cls.__mro__ if "slot" in vars(base)}) > 1:
            raise TypeError(
                f"{cls.__name__} is made of several parts, so it is an algorithm: derive it from "
                f"Composed, too"
            )

    def __init__(self, whole: Any) -> None:
        self.whole: Composed = whole  # Any: in a class made of parts, types have a config here
        self.config = whole.config

    def observe(self, scores: Scores, rollouts: Rollouts) -> None:
        pass

    def limited(
        self, estimated: Tensor, rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        return estimated

    def estimate(self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]) -> Tensor:
        raise NotImplementedError

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        raise NotImplementedError

    def no_signal(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        return Algorithm.no_signal(self.whole, scores, rollouts)

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        assert current.log_probs is not None
        return objective.token_log_ratio(current.log_probs, batch["old_log_probs"], batch["mask"])

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        raise NotImplementedError

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        return {}

    def teaches(self, rollouts: Rollouts) -> Tensor:
        return torch.ones_like(rollouts.truncated)

    def loss_weights(self, rollouts: Rollouts) -> Tensor:
        raise NotImplementedError

    def importance(self, batch: Batch) -> Tensor | None:
        return None

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        raise NotImplementedError

    def take_teacher(self, provides: frozenset[str]) -> None:
        Algorithm.take_teacher(self.whole, provides)

    def seen(self, current: LogProbs, batch: Batch) -> Batch:
        """The batch that surrogate and importance weights see; called for each part in turn."""
        return batch

    def added(self, current: LogProbs, batch: Batch) -> Tensor | None:
        """[b, t]: what it adds to the loss of decisions, before their weights; None for nothing.
        batch: as it came, before `seen`."""
        return None

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t] each, to log; batch: as this part's `seen` gets it."""
        return {}

    def prepare(self, policy: Policy, weights: KeptWeights) -> None:
        pass

    def begin_step(self, step: int) -> None:
        pass

    def after_updates(self, metrics: Mapping[str, float]) -> None:
        pass

    def end_step(self, weights: KeptWeights, step: int) -> Mapping[str, float]:
        return {}

    def warning(self, metrics: Mapping[str, Any]) -> str | None:
        return None
