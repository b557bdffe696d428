"""Calls: how those of an episode are made and named, and which of them are one rollout."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.environment import Context, Reply, Tools
from groupwise.kit.copies import copied, equal
from groupwise.prompt_source import Row, with_columns
from groupwise.record import Call, Comparison, Episode, Rollout


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
    in_turn: bool = False,
    limit: int | None = None,
    tools: Tools | None = None,
) -> list[Call]:
    """The calls for one context.

    grouped: how many candidates they are, which are compared with each other; None for a single
    call, which is compared with those of other episodes; chosen: whether `play` names the parent by
    `after`; in_turn: whether nothing names it, and it is the latest of the task; limit, tools: see
    `Call`.
    """
    turn, branch, forks = _path(episode, label, parent, chosen=chosen)
    if parent is not None:
        number, first, size = parent.identity, 0, grouped or 1
    elif grouped is not None:
        number, first, size, branch = episode.identity, 0, grouped, f"{branch}*"
    else:
        number, first, size = episode.group.seed_number, episode.index, episode.size
    place: tuple[Any, ...] = (_rollouts_before(label, parent), *forks)
    if grouped is not None:
        place = ("candidates", label, turn, branch, number)
    who = "" if episode.compared else label
    request = [
        Call(
            label=label,
            episode=episode,
            parent=parent,
            row=row,
            limit=limit,
            tools=tools,
            turn=turn,
            branch=branch,
            forks=forks,
            number=number,
            index=first + index,
            size=size,
            is_candidate=grouped is not None,
            comparison=Comparison(episode.group.number, who, place),
        )
        for index in range(grouped or 1)
    ]
    for call in request:
        call.request = request
        call.follows_all = in_turn and parent is not None and parent.is_candidate
    return request


def _path(
    episode: Episode, label: str, parent: Call | None, *, chosen: bool
) -> tuple[int, str, tuple[Any, ...]]:
    """What names a call along the calls that it follows, whatever the time: its turn, its branch,
    and the forks that it passes, each with the place where it is and the number of the way.

    Two calls of a player in an episode differ in one of them, unless they follow different
    candidates. Those of different draws and episodes that have equal numbers differ in the branch.

    Marks of a branch: "^", it begins an episode, though it is none of the `receivers`; ">", one of
    these that begins after another player; "*", candidates, with a size those that it follows; "@",
    the reply that `play` names; "+" and "&", how many calls of the player, and of all, followed the
    same one before, with the depth where that is.
    """
    siblings = [call for call in episode.calls if call.origin is parent and call.leads]
    repeated = sum(call.label == label for call in siblings)
    forks: tuple[Any, ...] = ()
    if parent is None:
        branch = "" if label in episode.receivers else "^"
        mark, turn, where = "", 0, ("", 0, 0)
    else:
        line = (parent, *parent.ancestors)
        branch, forks, mark = parent.branch, parent.forks, f"^{len(line)}"
        turn = next((call.turn + 1 for call in line if call.label == label), 0)
        where = (parent.label, _rollouts_before(parent.label, parent), len(parent.context_calls))
        if chosen:  # it may leave out earlier calls of the player
            turn, branch = max(turn, parent.turn), f"{branch}@{parent.label}"
        if parent.is_candidate:
            branch += f"*{parent.size}"
        elif not turn and label in episode.receivers:
            branch += ">"
    if siblings:
        forks = (*forks, (*where, len(siblings)))
    if repeated:
        branch += f"+{repeated}{mark}"
    if parent is not None and len(siblings) > repeated:
        branch += f"&{len(siblings)}{mark}"
    return turn, branch, forks


def _rollouts_before(label: str, parent: Call | None) -> int:
    """How many rollouts of a player began up to a call, along those that it follows."""
    line = () if parent is None else (parent, *parent.ancestors)
    return sum(call.label == label and call.begins for call in line)


def join_rollouts(calls: Sequence[Call]) -> None:
    """Note which sampled calls of a player are of one rollout: those that go on in one context.

    A candidate begins a rollout; and where two calls go on in the context of the same one, this is
    counted to the first of them.
    """
    last: dict[Call | None, Rollout] = {}
    for call in calls:
        earlier = None if call.is_candidate else last.pop(call.goes_on_from, None)
        if earlier is not None:
            call.rollout = earlier
            earlier.calls.append(call)
        last[call] = call.rollout
