"""Stage: plays episodes of a run's environment with policies that have no weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from groupwise.building.parts import Parts
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.episodes.sampling import Sampling
from groupwise.policy import Policy
from groupwise.prompt_source import PlacedRow
from groupwise.record import Group
from groupwise.rehearsal import Rehearsal

PATIENCE = 20.0
"""Seconds that the environment may take between two completions."""


class Stage:
    """Rehearsals of all policies of a run, by label, and its environment."""

    def __init__(self, parts: Parts, players: Mapping[str, Rehearsal]) -> None:
        self.parts, self.players = parts, players

    @classmethod
    def of(
        cls, parts: Parts, policies: Mapping[str, type[Policy]], settings: Mapping[str, Any]
    ) -> "Stage | None":
        """None if one of the policies has no rehearsal. settings: the `Config` of each policy."""
        made = {label: policies[label].rehearsal(own) for label, own in settings.items()}
        players = {label: each for label, each in made.items() if isinstance(each, Rehearsal)}
        return cls(parts, players) if players.keys() == policies.keys() else None

    def rows(self, count: int) -> list[PlacedRow]:
        """The first rows that no policy skips."""
        played = self.parts.players
        receivers = [self.players[label] for label in played.receivers]

        def is_shown(row: PlacedRow) -> bool:
            return not any(each.skips(played.opening(row)) for each in receivers)

        return [*islice(filter(is_shown, self.parts.prompts.rows()), count)]

    def play(self, sampler: EpisodeSampler, group: Group, *, says: str | None = None) -> Group:
        """The group with its episodes; says: what the judged policies write, as others do
        placeholders; None: these, too."""
        for label in self.parts.players.judged:
            self.players[label].says = says
        ((played,),) = sampler.draw([group])
        return played

    @contextmanager
    def open(self, size: int) -> Iterator[EpisodeSampler]:
        """The sampler of episodes; size: episodes of a draw. What the policies refuse is raised as
        they raised it."""
        samplings = {
            label: Sampling(each, each, seed=0, batch=size) for label, each in self.players.items()
        }
        sampler = EpisodeSampler(
            self.parts.players.environment,
            samplings,
            dict.fromkeys(samplings, size),
            deadline=PATIENCE,
            at_once=self.parts.config.environment.episodes,
        )
        try:
            sampler.follow({}, 0)
            yield sampler
        except Exception as error:
            for each in self.players.values():
                if each.fault is not None:
                    raise each.fault from error
            raise
        finally:
            with suppress(Exception):
                sampler.close()
