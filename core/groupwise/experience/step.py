"""Step: the judged groups of a training step, and the rollouts of its learners."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.record import Call, Group, Rollout
from groupwise.record.gather import View, judged, light, scores_of
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


@dataclass(kw_only=True)
class Step:
    """The groups of a step on this process, judged."""

    groups: Sequence[Group]
    scores: Scores
    """Of `rollouts`."""
    sampler: EpisodeSampler
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Over all processes."""
    dummies: Mapping[str, Rollouts | None] = field(default_factory=dict)
    """By label of the learner, a rollout for passes without effect while other processes have more
    micro-batches; None if there is one process."""

    @cached_property
    def judged(self) -> list[Call]:
        """The calls that rewards judged, and those that failed."""
        return [call for group in self.groups for call in group.judged]

    def rollouts_of(self, label: str) -> list[Rollout]:
        """Those of a player."""
        return [rollout for group in self.groups for rollout in group.rollouts(label)]

    def rest(self, label: str) -> list[Rollout] | None:
        """The judged rollouts of other players that are compared with a player's; None if there are
        none."""
        if len(self.sampler.casts) == 1:
            return None
        return [call.rollout for call in self.judged if call.label != label]

    @cached_property
    def views(self) -> Mapping[str, View]:
        """By label, the rollouts of a player, and their scores."""
        of_each = {label: self.rollouts_of(label) for label in self.sampler.labels}
        return {label: (light(own), scores_of(own, self.scores)) for label, own in of_each.items()}

    @cached_property
    def rollouts(self) -> Rollouts:
        """What rewards judged: without trajectories, in CPU memory."""
        return judged(self.judged, self.sampler.columns)
