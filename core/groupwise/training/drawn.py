"""Drawn: what samplers draw is written on the calls that it was drawn for."""

from collections.abc import Sequence
from typing import Any

from groupwise.environment import Reply
from groupwise.record import Call
from groupwise.record.gather import write
from groupwise.rollouts import Rollouts
from groupwise.sampler import Drawn, TurnSampler
from groupwise.tool_call import ToolCall, calls_of


def write_rows(rollouts: Rollouts, calls: Sequence[Call], *, trained: bool) -> None:
    """The completions of these calls, in order, each a rollout of its own; trained: whether a
    policy is trained on them."""
    write(rollouts, calls, trained=trained)
    for call in calls:
        call.is_drawn = True
        if call.failure is None:
            made = calls_of(call.completion)
            _count(call, made)
            call.reply = Reply(call.completion, call.label, call.truncated, made, source=call)


def write_turns(
    pairs: Sequence[tuple[Any, Drawn]], calls: Sequence[Call], sampler: TurnSampler
) -> None:
    """The turns of these calls, in order, each with its context afterwards."""
    for call, (context, turn) in zip(calls, pairs, strict=True):
        call.context, call.drawn, call.is_drawn = context, turn, True
        if turn.ended != "failed":
            made, content = sampler.tool_calls(context)
            _count(call, made)
            if not made and call.row.get("tools"):
                call.unparsed = int(sampler.resembles_call(turn.text))
            cut = turn.ended == "length"
            call.reply = Reply(turn.text, call.label, cut, tuple(made), content, source=call)


def _count(call: Call, made: Sequence[ToolCall]) -> None:
    """Count the calls of tools in a turn."""
    call.parsed = sum(each.fault is None for each in made)
    call.unparsed = len(made) - call.parsed
