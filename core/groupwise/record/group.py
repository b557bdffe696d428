"""Group: a prompt that was drawn, with its episodes; Episode: one of them, with its calls."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from groupwise.environment import Outcome
from groupwise.prompt_source import Row

if TYPE_CHECKING:
    from groupwise.record.call import Call
    from groupwise.record.rollout import Rollout


@dataclass
class Group:
    """A prompt that was drawn for episodes that are compared with each other."""

    number: int
    """The number of the draw in the run."""
    row: Row
    """The data set's."""
    index: int = 0
    """Of the row in its source."""
    source: str = ""
    """The label of the row's source in a mixture."""
    number_in_source: int | None = None
    """The number of the draw among those of its source; None without a mixture."""
    episodes: list["Episode"] = field(default_factory=list, compare=False, repr=False)

    @property
    def seed_number(self) -> int:
        """For seeds: in a mixture, draws of a source are seeded as if there were no other."""
        return self.number if self.number_in_source is None else self.number_in_source

    @property
    def seed_space(self) -> str:
        """The name space of the seeds of its source."""
        return f" of {self.source}" if self.source else ""

    @property
    def judged(self) -> Iterator["Call"]:
        """The calls that rewards judge, in the order of their episodes."""
        return (call for episode in self.episodes for call in episode.judged)

    def rollouts(self, label: str) -> Iterator["Rollout"]:
        """Those of a player, in the order of their episodes."""
        every = (rollout for episode in self.episodes for rollout in episode.rollouts)
        return (rollout for rollout in every if rollout.label == label)

    def release(self) -> None:
        """Forget what needs memory of all calls."""
        for episode in self.episodes:
            for call in episode.calls:
                call.release()

    @property
    def over(self) -> bool:
        """Whether all episodes are over."""
        return all(episode.over for episode in self.episodes)


@dataclass(eq=False, kw_only=True)
class Episode:
    """One episode of a group."""

    group: Group = field(repr=False)
    place: int
    """Its number in the batch that is played."""
    index: int
    """Its number among the episodes of its group with the same cast."""
    size: int
    """How many these are."""
    cast: Sequence[str]
    """The labels of its players."""
    seed: int
    """Of the environment's own chance."""
    receivers: Collection[str]
    """The players that begin episodes."""
    compared: bool
    """Whether all casts are compared with each other."""
    plain: bool
    """Whether it is one call of the only player, with the row as it is."""
    calls: list["Call"] = field(default_factory=list, repr=False)
    """In the order in which they were made; once the episode is finished, those with a completion,
    and first those that follow fewest."""
    over: bool = False
    outcome: Outcome = field(default=None, repr=False)
    """What `play` returned, until the episode is finished."""
    judged: list["Call"] = field(default_factory=list, repr=False)
    """The calls that rewards judge; set when the episode is finished."""
    ended: str | None = None
    """Why it ended, if by an exception of the environment."""
    failure: str | None = None
    """Why it failed."""
    error: str | None = None
    """The name of the exception by which it failed."""

    @property
    def identity(self) -> int:
        """For seeds: a number of its own among all episodes of its source with this cast."""
        return self.group.seed_number * self.size + self.index

    @property
    def rollouts(self) -> Iterator["Rollout"]:
        """Those that its calls are of, in the order of their first calls."""
        return (call.rollout for call in self.calls if call.rollout.first is call)

    @property
    def is_lost(self) -> bool:
        """Whether it failed before any reply, so that no call tells of it."""
        return self.failure is not None and not self.calls

    def followers(self, call: "Call | None") -> list["Call"]:
        """The calls with a completion that follow this one; of None the first ones."""
        return [each for each in self.calls if each.is_drawn and each.follows(call)]

    @property
    def drawn(self) -> list["Call"]:
        """The calls with a completion, by how many they follow: not in the order of their time."""
        drawn, level = list["Call"](), self.followers(None)
        while level:
            drawn += level
            level = [*dict.fromkeys(each for call in level for each in self.followers(call))]
        return drawn
