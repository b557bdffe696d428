"""Call: a completion that a player was called for; Comparison: whom it is compared with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from groupwise.environment import Columns, ContextRefused, Reply, Tools
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.record.group import Episode
from groupwise.record.seeds import seed_for
from groupwise.rewards import Score
from groupwise.rollouts import Rollouts, Turn
from groupwise.sampler import Drawn


class Comparison(NamedTuple):
    """Rollouts whose first calls have equal comparisons are compared with each other."""

    draw: int
    """The number of the prompt's draw."""
    who: str
    """The label of the player; "" for all casts of a pool."""
    place: tuple[Any, ...] = (0,)
    """Of candidates their context; of others how many rollouts of the player began before, and the
    forks on the way."""

    @property
    def number(self) -> int:
        """For tensors: that of the draw where all rollouts of it are compared, else a hash."""
        return self.draw if self.is_plain else seed_for(0, f"{self.who}{self.place}", self.draw, 0)

    @property
    def is_plain(self) -> bool:
        """Whether it is of the player's first rollout in each episode."""
        return self.place == (0,)


@dataclass(eq=False, kw_only=True)
class Call:
    """One completion of a player, and what is learned of it.

    What is below `of a rollout` is written on its first call. A rollout is one call, or those of
    one player that go on in one context, if the sampler draws turn by turn.
    """

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
    """Of the draw or of the parent."""
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

    error: ContextRefused | UserError | None = None
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
    failure: str | None = None
    """Why its rollout failed, or its episode, once it is finished."""
    reward: float | None = None
    """Of the turn, if `play` returned one."""
    state: int | None = None
    """A number for the state before the turn, if `play` named it."""

    # ---- of a rollout, on its first call

    first: "Call" = field(init=False, repr=False)
    """The first call of its rollout."""
    calls: list["Call"] = field(default_factory=list, repr=False)
    """Those of the rollout, in order."""
    rollouts: Rollouts | None = field(default=None, repr=False)
    """The batch that a sampler drew, in whose row `at` the completion lies."""
    at: int = 0
    mask: Tensor | None = field(default=None, repr=False)
    """[T] bool, in CPU memory: True at its decisions."""
    completion: Any = field(default=None, repr=False)
    """As rewards see it."""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The policy's; of a call that is not judged those that are logged."""
    truncated: bool = False
    """Whether a limit cut it off, as the sampler says."""
    ended: str | None = None
    """The environment's word for why it ended, if it has one."""
    turns: Sequence[Turn] | None = field(default=None, repr=False)
    """With what `play` returned of them, and later ones in other rollouts; None for one turn."""
    role: str | None = None
    """Whom it plays."""
    columns: Columns | None = field(default=None, repr=False)
    """What `play` returned with a call that rewards judge; None for others."""
    score: Score | None = field(default=None, repr=False)
    """The rewards, its own or from what followed."""
    is_replayed: bool = False
    """Whether it is of an earlier step."""
    advantage: float | None = None
    """The mean over its decisions, None where it was not trained on."""

    def __post_init__(self) -> None:
        self.first, self.calls, self.origin = self, [self], self.parent

    def move_facts(self) -> None:
        """Move the facts' tensors to CPU memory."""
        self.facts = {n: x.cpu() if isinstance(x, Tensor) else x for n, x in self.facts.items()}

    @property
    def length(self) -> int:
        """The number of the decisions of its rollout."""
        return 0 if self.mask is None else int(self.mask.sum())

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
        self.rollouts = self.mask = self.completion = self.columns = self.reply = None
        self.context = self.drawn = self.turns = None
        self.facts = {}

    @property
    def is_followed(self) -> bool:
        """Whether there is a completion that follows it."""
        return bool(self.episode.followers(self))

    @property
    def identity(self) -> int:
        """A number for those that follow, of its own for its player, turn and branch."""
        return self.number * self.size + self.index

    @property
    def weighed_as(self) -> tuple[Any, ...]:
        """The rollouts with an equal one count as one episode: those of an episode, but every
        candidate, and what follows it, by itself."""
        way = [(call.space, call.identity) for call in (self, *self.ancestors) if call.is_candidate]
        return (self.episode.cast, self.episode.group.number, self.episode.index, *way)

    @property
    def space(self) -> str:
        """The name space of its seed, within that of its player."""
        turn = f"/{self.turn}" if self.turn else ""
        return f"{self.episode.group.seed_space}{turn}{self.branch}"
