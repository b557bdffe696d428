"""Call: a completion that a player was called for; Comparison: whom it is compared with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from groupwise.environment import Columns, ContextRefused, Reply, Tools
from groupwise.errors import UserError
from groupwise.prompt_source import Row
from groupwise.record.group import Episode
from groupwise.rewards import Score
from groupwise.rollouts import Rollouts, Turn
from groupwise.sampler import Drawn

TURN = 2**40
"""Distance of the group numbers of a player's turns, more than a run has draws."""


class Comparison(NamedTuple):
    """Rollouts whose first calls have equal comparisons are compared with each other."""

    number: int


@dataclass(eq=False, kw_only=True)
class Call:
    """One completion of a player, and what is learned of it.

    What belongs to a rollout is written on its first call. A rollout is one call, or those of one
    player that go on in one context, if the sampler draws turn by turn.
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

    # ---- its identity: the seed is a function of player, turn, branch, number and index

    turn: int
    """How many completions of the same player it follows, or that of the completion which `play`
    names as the one before, if it is higher."""
    branch: str
    """Tells apart calls of the same player with the same parent."""
    number: int
    """Of the draw or of the parent."""
    index: int
    """Among `size` calls that differ in nothing else."""
    size: int
    leads: bool
    """Whether it is the first call for its context."""
    comparison: Comparison

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
    """The policy's; those that are logged, once rewards have seen them."""
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
        self.first, self.calls = self, [self]

    def move_facts(self) -> None:
        """Move the facts' tensors to CPU memory."""
        self.facts = {n: x.cpu() if isinstance(x, Tensor) else x for n, x in self.facts.items()}

    @property
    def length(self) -> int:
        """The number of the decisions of its rollout."""
        return 0 if self.mask is None else int(self.mask.sum())

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

    @property
    def is_followed(self) -> bool:
        """Whether there is a completion that follows it."""
        return bool(self.episode.followers(self))

    @property
    def identity(self) -> int:
        """A number for those that follow, of its own for its player, turn and branch."""
        return self.number * self.size + self.index

    @property
    def episode_number(self) -> int:
        """A number for the rollouts that count as one episode: those that follow each other, but
        every one of `Player.group`, and what follows it, by itself."""
        first = self
        while first.parent is not None and first.size == 1:
            first = first.parent
        return self.identity + first.turn * TURN

    @property
    def space(self) -> str:
        """The name space of its seed, within that of its player."""
        return (f"/{self.turn}" if self.turn else "") + self.branch

    @property
    def group_space(self) -> str:
        """The name space of the seed of its group, whose calls may be of several branches."""
        turn = f"/{self.turn}" if self.turn else ""
        return turn + ("*" if "*" in self.branch else "")
