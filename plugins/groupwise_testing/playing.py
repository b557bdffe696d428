"""play_episodes: the episodes of an environment, with real policies and without a run."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from groupwise.environment import Environment
from groupwise.policy import Policy
from groupwise.prompts.draws import Draw
from groupwise.sampler import Purpose
from groupwise.training.episode_sampler import EpisodeSampler
from groupwise.training.episodes import Episodes
from groupwise.training.sampling import Sampling


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
    draws = [Draw(number, row) for number, row in numbered.items()]
    sizes = dict.fromkeys(samplings, size)
    with closing(EpisodeSampler(environment, samplings, sizes)) as sampler:
        sampler.begin(0)
        sampler.follow({}, 0)
        if purpose == "train":
            return Episodes.concat([*sampler.draw(draws)])
        (cast,) = sampler.casts
        played = sampler.evaluate(cast, draws, size, purpose, space="evaluation")
        return Episodes.concat([*played])
