"""Composed: an algorithm that is made of parts, which are its arguments."""

from abc import ABCMeta
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from pydantic import create_model
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import OBSERVATIONS, Algorithm, Batch
from groupwise.algorithms.parts.part import Options, Part
from groupwise.policy import Policy
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.weights import KeptWeights

SLOTS = (
    *("advantage", "ratio", "surrogate", "teacher", "importance"),
    *("divisor", "observations", "entropy", "divergence"),
)
"""What an algorithm is composed of. Of what the surrogate sees, a teacher changes advantages first,
then importance weights leave decisions out."""
OUTPUTS = ("needs", "old", "reference", "target_inputs")
"""What parts declare, and the algorithm has the union of."""
FLAGS = ("moves_reference", "couples_decisions", "refills", "corrects")
"""What parts set: those of a part's class are the algorithm's unless its class says otherwise."""


class Composing(ABCMeta):
    """Takes a part among the base classes for an argument: `class Mine(Clipped, Usual)` is `class
    Mine(Usual, surrogate=Clipped)`. The parts are then no base classes."""

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        **parts: type[Part],
    ) -> "Composing":
        chosen = [base for base in bases if issubclass(base, Part)]
        rest = tuple(base for base in bases if base not in chosen)
        parts = {part.slot: part for part in reversed(chosen)} | parts
        return super().__new__(cls, name, rest, namespace, **parts)


class Composed(Algorithm, metaclass=Composing):
    """weights x (importance x surrogate + beta KL - entropy bonus), summed over decisions; and the
    cross-entropy of what the environment says, which is at other positions.

    A variant names its parts, `class Mine(Usual, advantage=GroupRelative, surrogate=Clipped)`, and
    has those of its base class besides. Its `Config` has the options that it states, and those of
    its parts. It may override any method that a part fills in; `super()` then is the part's.

    kinds: by slot, the classes of its parts; parts: the parts.
    entropy, observation: weights of the entropy bonus and of that cross-entropy in the loss.
    """

    stated: ClassVar[Mapping[str, type[Part]]] = dict.fromkeys(SLOTS, Part)
    kinds: ClassVar[Mapping[str, type[Part]]] = stated
    Config: ClassVar[type[Options]] = Options
    config: Options

    def __init_subclass__(cls, **parts: type[Part]) -> None:
        super().__init_subclass__()
        if unknown := parts.keys() - set(SLOTS):
            raise TypeError(
                f"{cls.__name__}: {min(unknown)} is not a part of an algorithm; these are "
                f"{', '.join(SLOTS)}"
            )
        replaced = [cls.kinds[slot] for slot in parts]
        cls.stated = parts
        for kind in parts.values():
            for name in FLAGS:
                if getattr(kind, name) and name not in vars(cls):
                    setattr(cls, name, True)
        every = [base.stated for base in reversed(cls.__mro__) if issubclass(base, Composed)]
        cls.kinds = {slot: kind for stated in every for slot, kind in stated.items()}
        options = [kind.Config for kind in cls.kinds.values()]
        for kind in replaced:
            if issubclass(cls.Config, kind.Config) and not _among(options, kind.Config):
                raise TypeError(
                    f"{cls.__name__}: its Config has the options of {kind.__name__}, a part that "
                    f"it does not take; derive both from Usual, or from another class without it"
                )
        cls.Config = _joined(cls, cls.Config, options)

    def __init__(self, config: Options | None = None) -> None:
        self.config = config or self.Config()
        self.adapted = {}
        self.parts = {slot: kind(self) for slot, kind in self.kinds.items()}
        for part in self.parts.values():
            for name in OUTPUTS:
                setattr(self, name, getattr(self, name) | getattr(part, name))
            for name in vars(part).keys() & set(FLAGS):
                setattr(self, name, getattr(part, name))
        self.entropy = self.parts["entropy"].weight
        self.observation = self.parts["observations"].weight

    @property
    def beta(self) -> float:
        """The weight of the KL in the loss, which may change from step to step."""
        return self.parts["divergence"].weight

    def advantages(
        self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """[B], or [B, T] with process rewards; arguments as of `targets`."""
        estimated = self.estimate(scores, rollouts, inputs)
        return self.parts["advantage"].limited(estimated, rollouts, inputs)

    def estimate(self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]) -> Tensor:
        """[B] or [B, T]: the advantages before they are clipped."""
        return self.parts["advantage"].estimate(scores, rollouts, inputs)

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B]: the advantages of whole completions."""
        return self.parts["advantage"].relative(scores, rollouts)

    def no_signal(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        return self.parts["advantage"].no_signal(scores, rollouts)

    def teaches(self, rollouts: Rollouts) -> Tensor:
        """[B] bool: the rollouts that are learned from, their observations included; by default
        all."""
        return self.parts["divisor"].teaches(rollouts)

    def loss_weights(self, rollouts: Rollouts) -> Tensor:
        """[B, T] float32: the loss weight of each decision."""
        return self.parts["divisor"].loss_weights(rollouts)

    @property
    def length(self) -> int | None:
        """The divisor of `normalize: constant`."""
        return self.parts["divisor"].length

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the importance log-ratio of each decision, 0 outside the mask."""
        return self.parts["ratio"].log_ratio(current, batch)

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the loss of each decision by its advantage, unweighted."""
        return self.parts["surrogate"].surrogate(current, batch)

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t] each, to log: how much `surrogate` reduces gradients away from ratio 1."""
        return self.parts["surrogate"].clip_metrics(current, batch)

    @property
    def clip_high(self) -> float:
        """The clip range above 1, of a surrogate that has one."""
        return self.parts["surrogate"].clip_high

    def importance(self, batch: Batch) -> Tensor | None:
        """[b, t]: importance weights of decisions that another sampler, or older weights, drew;
        they multiply the surrogate. None for none."""
        return self.parts["importance"].importance(batch)

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the divergence of each decision from the reference, if there is one."""
        return self.parts["divergence"].kl(current, batch)

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
        """[b, t]: weights x (importance x surrogate + beta KL - entropy bonus + what parts add),
        and at observations their weights x -log_prob."""
        seen = batch
        for part in self.parts.values():
            seen = part.seen(current, seen)
        loss, importance = self.surrogate(current, seen), self.importance(seen)
        if importance is not None:
            loss = loss * importance
        if self.beta:
            loss = loss + self.beta * self.kl(current, seen)
        if self.entropy:
            assert current.entropy is not None
            loss = loss - self.entropy * current.entropy
        # torch.where, not only a product: padding may hold anything, and 0 x inf is NaN.
        loss = torch.where(batch["mask"], loss * batch["weights"], 0.0)
        if self.observation:
            loss = loss - batch["observation_weights"] * current.extra["observation_log_probs"]
        for part in self.parts.values():
            if (added := part.added(current, batch)) is not None:
                loss = loss + torch.where(batch["mask"], added * batch["weights"], 0.0)
        return loss

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """`clip_metrics`; importance weights; the KL, where there is a reference;
        `trained_entropy` if the policy provides the entropy; what parts measure."""
        seen, of_parts = batch, dict[str, Tensor]()
        for part in self.parts.values():
            of_parts = {**part.measure(current, seen), **of_parts}
            seen = part.seen(current, seen)
        measured, importance = dict(self.clip_metrics(current, seen)), self.importance(seen)
        if importance is not None:
            measured["importance"] = importance
        if self.reference:
            measured["kl"] = self.kl(current, seen)
        if current.entropy is not None:
            measured["trained_entropy"] = current.entropy
        return {**measured, **of_parts}

    def take_teacher(self, provides: frozenset[str]) -> None:
        self.parts["teacher"].take_teacher(provides)

    def prepare(self, policy: Policy, weights: KeptWeights) -> None:
        for part in reversed(self.parts.values()):
            part.prepare(policy, weights)

    def observe(self, scores: Scores, rollouts: Rollouts) -> None:
        for part in self.parts.values():
            part.observe(scores, rollouts)

    def begin_step(self, step: int) -> None:
        for part in self.parts.values():
            part.begin_step(step)

    def after_updates(self, metrics: Mapping[str, float]) -> None:
        for part in self.parts.values():
            part.after_updates(metrics)

    def end_step(self, weights: KeptWeights, step: int) -> Mapping[str, float]:
        return {k: x for p in self.parts.values() for k, x in p.end_step(weights, step).items()}

    def warning(self, metrics: Mapping[str, Any]) -> str | None:
        """The first warning of a part."""
        warnings = [part.warning(metrics) for part in self.parts.values()]
        return next(filter(None, warnings), None)


def _among(options: Collection[type[Options]], own: type[Options]) -> bool:
    return any(issubclass(one, own) for one in options)


def _joined(
    owner: type[Composed], own: type[Options], options: Collection[type[Options]]
) -> type[Options]:
    """The options that a class states, and those of its parts that these lack."""
    every = dict.fromkeys([own, *(one for one in options if not issubclass(own, one))])
    # Of two that derive from each other, only the one that has the other's options.
    bases: Any = tuple(a for a in every if not any(a is not b and issubclass(b, a) for b in every))
    if bases == (own,):
        return own
    return create_model("Config", __base__=bases, __module__=owner.__module__)
