"""Call: a completion that a player was called for; Comparison: whom it is compared with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from groupwise.environment import Columns, EpisodeEnded, Reply, Tools
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.record.group import Episode
from groupwise.record.rollout import Rollout
from groupwise.record.seeds import seed_for
from groupwise.sampler import Drawn


class Comparison(NamedTuple):
    """Rollouts with equal ones, those of their first calls, are compared with each other."""

    draw: int
    """The number of the prompt's draw."""
    who: str
    """The label of the player; "" for all casts of a pool."""
    place: tuple[Any, ...] = (0,)
    """Of candidates their request's among the episode's calls; of others how many rollouts of the
    player began before, and the forks on the way."""

    @property
    def number(self) -> int:
        """For tensors: that of the draw for the player's first rollouts, else a hash."""
        return self.draw if self.is_plain else seed_for(0, f"{self.who}{self.place}", self.draw, 0)

    @property
    def is_plain(self) -> bool:
        """Whether it is of the player's first rollout in each episode."""
        return self.place == (0,)


@dataclass(eq=False, kw_only=True)
class Call:
    """One completion of a player: what it is asked for, and what became of it."""

    label: str
    """Of the player."""
    episode: Episode = field(repr=False)
    parent: "Call | None" = field(repr=False)
    """The completion that it follows."""
    row: Row = field(repr=False)
    """With the prompt to complete."""
    limit: int | None = None
    """The most decisions, None for the policy's own limit."""
    tools: Tools | None = field(default=None, repr=False)
    """Shown from this context on; None for those of the earlier one."""

    # ---- its identity: the seed is a function of player, turn, branch, number and index, in all of
    # which no two calls of a run are equal

    turn: int
    """How many completions of the same player it follows, or that of the completion which `play`
    names as the one before, if it is higher."""
    branch: str
    """Marks of the way to it, that tell apart calls which are equal in the others."""
    forks: tuple[Any, ...]
    """The forks on its way, where a call was not the first to follow another one."""
    number: int
    """Of the draw or of the parent; of the episode for candidates without a parent."""
    index: int
    """Among `size` calls that differ in nothing else."""
    size: int
    is_candidate: bool
    """Whether it is one of those of `Player.group`."""
    comparison: Comparison
    request: Sequence["Call"] = field(default=(), repr=False)
    """The calls for its context, itself among them."""
    origin: "Call | None" = field(init=False, repr=False)
    """The `parent` by which it is named, also where another candidate turns out to be it."""
    follows_all: bool = False
    """Whether it follows all candidates of the request of its parent alike, since the environment
    did not name one."""

    # ---- what was drawn

    error: EpisodeEnded | UserError | None = None
    """Why its context has no completion, if so."""
    goes_on_from: "Call | None" = field(default=None, repr=False)
    """The call in whose context it goes on, if it does."""
    is_drawn: bool = False
    """Whether it has a completion, which may have failed."""
    context: Any = field(default=None, repr=False)
    """After its turn, where a sampler draws turn by turn; until its episode is finished."""
    drawn: Drawn | None = field(default=None, repr=False)
    """This turn, as long as the context."""
    is_held: bool | None = None
    """Whether its rollout has the turn as it was drawn, None if that is not known."""
    parsed: int = 0
    """How many calls of tools it has."""
    unparsed: int = 0
    """How many it has with a fault, or seems to have."""
    reply: Reply | None = field(default=None, repr=False)
    """None if the completion failed."""
    refused_by: str | None = None
    """The player that could not take the reply."""
    is_cut: bool = False
    """Whether its context has no room to go on."""
    reward: float | None = None
    """Of the turn, if `play` returned one."""
    state: int | None = None
    """A number for the state before the turn, if `play` named it."""
    columns: Columns | None = field(default=None, repr=False)
    """What `play` returned with it, if rewards judge it; None for others."""
    rollout: Rollout = field(init=False, repr=False)
    """Its own, until its episode is finished and it turns out to go on in an earlier one."""

    def __post_init__(self) -> None:
        self.rollout, self.origin = Rollout(calls=[self]), self.parent

    @property
    def leads(self) -> bool:
        """Whether it is the first call for its context."""
        return not self.request or self.request[0] is self

    @property
    def begins(self) -> bool:
        """Whether a rollout begins with it, as far as is known while it is played."""
        return self.is_candidate or self.goes_on_from is None

    @property
    def context_calls(self) -> list["Call"]:
        """The calls whose turns are in its context, in order; itself is the last."""
        calls = [self]
        while (earlier := calls[-1].goes_on_from) is not None:
            calls.append(earlier)
        return calls[::-1]

    @property
    def ancestors(self) -> Iterator["Call"]:
        """The calls that it follows, the latest first."""
        call = self.parent
        while call is not None:
            yield call
            call = call.parent

    def follows(self, call: "Call | None") -> bool:
        """Whether it follows this call directly."""
        if self.parent is call:
            return True
        return self.follows_all and self.parent is not None and call in self.parent.request

    def refuse(self, label: str, *, everything: bool) -> None:
        """Note that a player could not take the reply; everything: nor those of the candidates
        beside it."""
        for call in self.request if everything and self.is_candidate else [self]:
            call.refused_by = label

    def release(self) -> None:
        """Forget what needs memory: it is not read any more.

        Calls and episodes know each other, so that Python would free them late.
        """
        self.columns = self.reply = self.context = self.drawn = None
        self.rollout.release()

    @property
    def is_followed(self) -> bool:
        """Whether there is a completion that follows it."""
        return bool(self.episode.followers(self))

    @property
    def identity(self) -> int:
        """A number for those that follow, of its own for its player, turn and branch."""
        return self.number * self.size + self.index

    @property
    def space(self) -> str:
        """The name space of its seed, within that of its player."""
        turn = f"/{self.turn}" if self.turn else ""
        return f"{self.episode.group.seed_space}{turn}{self.branch}"
