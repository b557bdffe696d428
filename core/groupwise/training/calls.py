"""Calls: how those of an episode are made and named, and which of them are one rollout."""

from collections.abc import Mapping, Sequence

from groupwise.copies import copied, equal
from groupwise.environment import Context, Reply, Tools
from groupwise.prompt_source import Row, with_columns
from groupwise.prompts.seeds import seed_for
from groupwise.record import Call, Comparison, Episode
from groupwise.record.call import TURN


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
    limit: int | None = None,
    tools: Tools | None = None,
) -> list[Call]:
    """The calls for one context.

    grouped: how many are compared with each other; None for a single one, which is compared with
    those of other episodes; chosen: whether `play` names the parent; limit, tools: see `Call`.
    """
    line = () if parent is None else (parent, *parent.ancestors)
    turn = sum(call.label == label for call in line)
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
        number, first, size = episode.group.number, episode.index, episode.size
    group = (number if grouped is not None else episode.group.number) + turn * TURN
    return [
        Call(
            label=label,
            episode=episode,
            parent=parent,
            row=row,
            limit=limit,
            tools=tools,
            turn=turn,
            branch=branch,
            number=number,
            index=first + index,
            size=size,
            leads=index == 0,
            comparison=Comparison(group),
        )
        for index in range(grouped or 1)
    ]


def join_rollouts(calls: Sequence[Call]) -> None:
    """Note which sampled calls of a player are of one rollout: those that go on in one context.

    Where two calls go on in the context of the same one, this is counted to the first of them.
    """
    last: dict[Call | None, Call] = {}
    for call in calls:
        first = last.pop(call.goes_on_from, None)
        if first is not None:
            call.first = first
            first.calls.append(call)
        last[call] = call.first
