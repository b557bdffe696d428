"""Composed: an algorithm whose loss is made of parts."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import OBSERVATIONS, Algorithm, Batch
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts


class Options(BaseModel):
    """Base class of the options of a part."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Composed(Algorithm):
    """weights x (importance x surrogate + beta KL - entropy bonus), summed over decisions; and the
    cross-entropy of what the environment says, which is at other positions.

    A part is a subclass that fills in one of the methods below, with a nested `Config` of its
    options; a variant inherits from the parts that it takes, and its `Config` from theirs.

    beta, entropy, observation: weights of the KL, of the entropy bonus and of that cross-entropy in
    the loss; parts set them.
    """

    Config: ClassVar[type[Options]] = Options
    config: Options
    beta: float = 0.0
    entropy: float = 0.0
    observation: float = 0.0

    def __init__(self, config: Options | None = None) -> None:
        self.config = config or self.Config()

    @abstractmethod
    def advantages(
        self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """[B], or [B, T] with process rewards; arguments as of `targets`."""

    def teaches(self, rollouts: Rollouts) -> Tensor:
        """[B] bool: the rollouts that are learned from, their observations included; by default
        all."""
        return torch.ones_like(rollouts.truncated)

    @abstractmethod
    def loss_weights(self, rollouts: Rollouts) -> Tensor:
        """[B, T] float32: the loss weight of each decision."""

    @abstractmethod
    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the loss of each decision by its advantage, unweighted."""

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t] each, to log: how much `surrogate` reduces gradients away from ratio 1."""
        return {}

    def importance(self, batch: Batch) -> Tensor | None:
        """[b, t]: importance weights of decisions that another sampler, or older weights, drew;
        they multiply the surrogate. None for none."""
        return None

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the divergence of each decision from the reference, if there is one."""
        raise NotImplementedError

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the importance log-ratio of each decision, 0 outside the mask; variants override
        this."""
        assert current.log_probs is not None
        return objective.token_log_ratio(current.log_probs, batch["old_log_probs"], batch["mask"])

    def targets(
        self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """`advantages` [B], or [B, T] with process rewards; `weights` [B, T]; and, if observations
        have a loss, `observation_weights` [B, T]. All float32."""
        targets = {
            "advantages": self.advantages(scores, rollouts, inputs).to(torch.float32),
            "weights": self.loss_weights(rollouts),
        }
        if self.observation:
            observed = (inputs[OBSERVATIONS] > 0) & self.teaches(rollouts).unsqueeze(1)
            share = objective.weights(observed, normalize="token")
            targets["observation_weights"] = self.observation * share
        return targets

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """[B] bool: weight != 0, and advantage != 0 unless KL, entropy or a teacher have a gradient
        anyway; or observations that have a loss."""
        active = (targets["weights"] != 0).any(dim=1)
        if not (self.beta or self.entropy or self.teacher):
            active &= (objective.per_decision(targets["advantages"]) != 0).any(dim=1)
        if self.observation:
            active |= (targets["observation_weights"] != 0).any(dim=1)
        return active

    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: weights x (importance x surrogate + beta KL - entropy bonus), and at observations
        their weights x -log_prob."""
        loss, importance = self.surrogate(current, batch), self.importance(batch)
        if importance is not None:
            loss = loss * importance
        if self.beta:
            loss = loss + self.beta * self.kl(current, batch)
        if self.entropy:
            assert current.entropy is not None
            loss = loss - self.entropy * current.entropy
        # torch.where, not only a product: padding may hold anything, and 0 x inf is NaN.
        loss = torch.where(batch["mask"], loss * batch["weights"], 0.0)
        if self.observation:
            loss = loss - batch["observation_weights"] * current.extra["observation_log_probs"]
        return loss

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """`clip_metrics`; importance weights; the KL, where there is a reference;
        `trained_entropy` if the policy provides the entropy."""
        measured, importance = dict(self.clip_metrics(current, batch)), self.importance(batch)
        if importance is not None:
            measured["importance"] = importance
        if self.reference:
            measured["kl"] = self.kl(current, batch)
        if current.entropy is not None:
            measured["trained_entropy"] = current.entropy
        return measured
