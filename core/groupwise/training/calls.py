"""Calls: the completions that the players of an episode were called for, and what names each."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groupwise.copies import copied, equal
from groupwise.environment import Context, ContextRefused, Outcome, Reply, Tools
from groupwise.errors import UserError
from groupwise.prompt_source import Row, with_columns
from groupwise.prompts.draws import Draw
from groupwise.prompts.seeds import seed_for
from groupwise.rollouts import Rollouts
from groupwise.sampler import Drawn

TURN = 2**40
"""Distance of the group numbers of a player's turns, more than a run has draws."""


@dataclass(eq=False, kw_only=True)
class Episode:
    """One episode of a batch.

    place: its number in the batch; index: among the `size` episodes of its draw that the same cast
    plays; cast: labels of its players; seed: of the environment's own chance; calls: in order;
    waiting: requests that its coroutine waits for; task: in which it is played; tasks: this one and
    those that it has started, while they run; timer: of its deadline, while it waits for no player;
    was_called: whether a player was; outcome: what the coroutine returned; ended: why it ended, if
    by an exception; failure: that of the environment; error: the name of its exception.
    """

    draw: Draw
    place: int
    index: int
    size: int
    cast: Sequence[str]
    seed: int
    calls: list["Call"] = field(default_factory=list)
    waiting: int = 0
    task: "asyncio.Task[None] | None" = None
    tasks: "set[asyncio.Task[Any]]" = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    was_called: bool = False
    over: bool = False
    assembled: bool = False
    outcome: Outcome = None
    ended: str | None = None
    failure: str | None = None
    error: str | None = None

    @property
    def identity(self) -> int:
        """A number of its own among all episodes of the run with this cast."""
        return self.draw.number * self.size + self.index

    def followers(self, call: "Call | None") -> list["Call"]:
        """The calls with a completion that follow this one; of None the first ones."""
        return [each for each in self.calls if each.parent is call and each.is_drawn]

    @property
    def drawn(self) -> list["Call"]:
        """The calls with a completion, by how many they follow: not in the order of their time."""
        drawn, level = list[Call](), self.followers(None)
        while level:
            drawn += level
            level = [each for call in level for each in self.followers(call)]
        return drawn


@dataclass(eq=False, kw_only=True)
class Call:
    """One completion of a player.

    row: with the prompt to complete; parent: the completion that it follows; group: the number of
    the completions that it is compared with; turn: how many completions of the same player it
    follows, or that of the completion which `play` names as the one before, if it is higher;
    branch: tells apart calls of the same player with the same parent. The seed is a function of
    (player, turn, branch, number, index); number: of the draw or of the parent; leads: whether it
    is the first call for its context; goes_on_from: the call in whose context it goes on, if it
    does; is_drawn: whether it has a completion, which may have failed; context: after its turn,
    where a sampler draws turn by turn; drawn: this turn, until its rollout is assembled; is_held:
    whether the rollout has the turn as it was drawn, None if that is not known; parsed: how many
    calls of tools its turn has; unparsed: how many it has with a fault, or seems to have; part: the
    sampled batch with its completion, in the row `at`; reply: None if the completion failed;
    refused_by: the player that could not take the reply; is_cut: whether its context has no room to
    go on; failure: why its rollout failed, or its episode, once it is assembled; reward, state,
    role: of the turn, if `play` returned any.
    """

    label: str
    episode: Episode
    parent: "Call | None"
    row: Row
    group: int
    turn: int
    branch: str
    number: int
    index: int
    size: int
    leads: bool
    goes_on_from: "Call | None" = None
    is_drawn: bool = False
    context: Any = None
    drawn: Drawn | None = None
    is_held: bool | None = None
    parsed: int = 0
    unparsed: int = 0
    reply: Reply | None = None
    part: "Part | None" = None
    at: int = 0
    refused_by: str | None = None
    is_cut: bool = False
    failure: str | None = None
    reward: float | None = None
    state: int | None = None
    role: str | None = None

    @property
    def context_calls(self) -> list["Call"]:
        """The calls whose turns are in its context, in order; itself is the last."""
        calls = [self]
        while (earlier := calls[-1].goes_on_from) is not None:
            calls.append(earlier)
        return calls[::-1]

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


def in_rows(calls: Sequence[Call]) -> list[list[Call]]:
    """The sampled calls of a player, those of one rollout together, in their order.

    Where two calls go on in the context of the same one, this is counted to the first of them.
    """
    rows: list[list[Call]] = []
    last: dict[Call | None, list[Call]] = {}
    for call in calls:
        row = last.pop(call.goes_on_from, None)
        if row is None:
            row = []
            rows.append(row)
        row.append(call)
        last[call] = row
    return rows


Rows = Mapping[str, Sequence[Sequence[Call]]]
"""By label, for each rollout of the player its calls: several if they went on in one context."""


@dataclass(eq=False)
class Part:
    """A sampled batch, until all its episodes are assembled."""

    rollouts: Rollouts


@dataclass(eq=False)
class Request:
    """Completions of one context by one player that an episode's coroutine waits for.

    limit: the most decisions of each, None for the policy's own limit; tools: shown from this
    context on, None for those of the earlier one; error: why the context has no completion, if so.
    """

    episode: Episode
    label: str
    calls: Sequence[Call]
    answer: "asyncio.Future[None]"
    limit: int | None = None
    tools: Tools | None = None
    error: ContextRefused | UserError | None = None

    @property
    def refused(self) -> bool:
        """Whether the context has no room."""
        return isinstance(self.error, ContextRefused)

    @property
    def is_answered(self) -> bool:
        return self.error is not None or all(call.is_drawn for call in self.calls)

    @property
    def place(self) -> tuple[int, int]:
        """Its order in a batch, whatever the timing."""
        return self.episode.place, self.episode.calls.index(self.calls[0])


def row_of(context: Context, row: Row, tools: Tools | None) -> Row:
    """The row that a player completes: the data set's, with the context as its prompt, and with
    these tools; the data set's row itself if the context equals it.

    Of what an environment passes they are copies, since it may go on to change it.
    """
    shown = {} if tools is None else {"tools": copied([*tools])}
    if isinstance(context, Mapping):
        own = row if equal(context, row) else copied(context)
        return with_columns(own, shown) if shown else own
    if isinstance(context, Reply):
        return with_columns(row, {"prompt": context.text, **shown})
    prompt = context if isinstance(context, str) else copied([*context])
    return with_columns(row, {"prompt": prompt, **shown})


def calls_for(
    episode: Episode,
    label: str,
    row: Row,
    parent: Call | None,
    *,
    grouped: int | None,
    chosen: bool = False,
) -> list[Call]:
    """The calls for one context; grouped: how many are compared with each other; None for a single
    one, which is compared with those of other episodes; chosen: whether `play` names the parent."""
    turn = (
        0 if parent is None else sum(call.label == label for call in (parent, *ancestors(parent)))
    )
    branch = parent.branch if parent else ""
    if chosen and parent is not None:  # it may leave out earlier calls of the player
        turn, branch = max(turn, parent.turn), f"{branch}@{parent.label}"
    same = [call for call in episode.calls if call.label == label and call.parent is parent]
    if repeated := sum(call.leads for call in same):
        branch += f"+{repeated}"
    if parent is not None:
        number, first, size = parent.identity, 0, grouped or 1
        if grouped is not None and number >= TURN:  # after many turns of several candidates
            number = seed_for(0, "call", number, 0) % TURN
    elif grouped is not None:
        number, first, size, branch = episode.identity, 0, grouped, f"{branch}*"
    else:
        number, first, size = episode.draw.number, episode.index, episode.size
    group = (number if grouped is not None else episode.draw.number) + turn * TURN
    return [
        Call(
            label=label,
            episode=episode,
            parent=parent,
            row=row,
            group=group,
            turn=turn,
            branch=branch,
            number=number,
            index=first + index,
            size=size,
            leads=index == 0,
        )
        for index in range(grouped or 1)
    ]


def ancestors(call: Call) -> Iterator[Call]:
    """The calls that it follows, the latest first."""
    while call.parent is not None:
        call = call.parent
        yield call
