"""play_episodes: the episodes of an environment, with real policies and without a run."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from groupwise.environment import Environment
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.episodes.sampling import Sampling
from groupwise.experience import failures
from groupwise.policy import Policy
from groupwise.record import Call, Group, Rollout
from groupwise.record.gather import gather, judged
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose


@dataclass(frozen=True)
class Episodes:
    """Episodes that were played."""

    groups: Sequence[Group]
    """The rows, with their episodes and the calls of these."""
    labels: Sequence[str]
    """Of the players."""
    columns: Sequence[str]
    """Those of the environment."""

    @property
    def judged_calls(self) -> list[Call]:
        """The calls that rewards judge."""
        return [call for group in self.groups for call in group.judged]

    @property
    def judged(self) -> Rollouts:
        """The rollouts that rewards see, without trajectories."""
        return judged(self.judged_calls, self.columns)

    def rollouts_of(self, label: str) -> list[Rollout]:
        """Those of a player, with what is known of each."""
        return [own for group in self.groups for own in group.rollouts(label)]

    def rollouts(self, label: str) -> Rollouts:
        """The rollouts of a player as a batch."""
        return gather(self.rollouts_of(label))

    @property
    def failures(self) -> Mapping[str, str]:
        """By cause, a sentence on the first completion of each player that failed."""
        return failures.described(self.groups, self.labels)


def played(sampler: EpisodeSampler, groups: Sequence[Group]) -> Episodes:
    """The episodes of these groups, as a run plays them to train on them."""
    parts = [group for part in sampler.draw(groups) for group in part]
    return Episodes(parts, sampler.labels, sampler.columns)


def play_episodes(
    environment: Environment,
    policies: Mapping[str, Policy],
    rows: Sequence[Mapping[str, Any]] | Mapping[int, Mapping[str, Any]],
    *,
    size: int = 4,
    batch: int = 512,
    seed: int = 0,
    purpose: Purpose = "train",
) -> Episodes:
    """Play `size` episodes of each row as a run does, which also closes the environment.

    policies: by label; "policy" is the label of a run's only one. rows: of the data set, numbered
    in order, or by the numbers of their draws, from which groups and seeds are made. size: also the
    completions of `Player.group`. batch: completions that are sampled at a time. seed: of the run.
    purpose: of an evaluation if it is not "train"; then the seeds are others.

    `Episodes.judged` are the rollouts that rewards see, `rollouts(label)` those of a player.
    """
    samplings = {
        label: Sampling(policy, policy, seed=seed, batch=batch)
        for label, policy in policies.items()
    }
    numbered = rows if isinstance(rows, Mapping) else dict(enumerate(rows))
    groups = [Group(number, row) for number, row in numbered.items()]
    sizes = dict.fromkeys(samplings, size)
    with closing(EpisodeSampler(environment, samplings, sizes)) as sampler:
        sampler.begin(0)
        sampler.follow({}, 0)
        if purpose == "train":
            return played(sampler, groups)
        (cast,) = sampler.casts
        parts = sampler.evaluate(cast, groups, size, purpose, space="evaluation")
        every = [group for part in parts for group in part]
        return Episodes(every, sampler.labels, sampler.columns)
