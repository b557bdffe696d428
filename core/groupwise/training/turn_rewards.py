"""Turn rewards: what an environment says of single turns: their rewards, states and roles."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from groupwise.environment import Columns
from groupwise.errors import UserError
from groupwise.metric_names import Family
from groupwise.rollouts import Rollouts, Turn
from groupwise.training.calls import Call, Rows, ancestors
from groupwise.training.tally import Tally

REWARDS, STATES, ROLE = RESERVED = "turn_rewards", "states", "role"
"""Columns of `Environment.play` on the turns of a judged reply."""
MOST_LOGGED = 8
"""Turns whose mean rewards are metrics of their own."""


def note(judged: Sequence[tuple[Call, Columns]], rows: Rows) -> Mapping[Call, Sequence[Call]]:
    """Note with each call what `play` returned of its turn.

    judged: the calls that rewards judge, with their columns; rows: the calls of each rollout.
    Returns the later turns of each call that something was returned of. Raises UserError for
    columns that do not fit the turns.
    """
    row_of = {call: own[0] for each in rows.values() for own in each for call in own}
    judged_rows = {row_of[call] for call, _ in judged}
    later = dict[Call, Sequence[Call]]()
    for call, columns in judged:
        if all(columns.get(name) is None for name in RESERVED):
            continue
        of_context = {row_of[call], *(row_of[each] for each in call.context_calls)}
        turns = [
            each
            for each in (call, *ancestors(call))
            if each.label == call.label
            and each.reply is not None
            and (row_of[each] in of_context or row_of[each] not in judged_rows)
        ][::-1]
        rewards = [_number(x) for x in _column(columns, REWARDS, call, len(turns))]
        states = [_name(x, call) for x in _column(columns, STATES, call, len(turns))]
        role = _role(columns)
        for place, turn in enumerate(turns):
            turn.reward, turn.state, turn.role = rewards[place], states[place], role
            later[turn] = turns[place + 1 :]
    return later


def with_turns(
    rollouts: Rollouts, rows: Sequence[Sequence[Call]], later: Mapping[Call, Sequence[Call]]
) -> Rollouts:
    """The same with the rewards and states of turns, and with roles.

    rows: the calls of each rollout; later: as `note` returns it.
    """
    if not later:
        return rollouts
    turns = list[Sequence[Turn]]()
    for own, calls in zip(rollouts.each_turn, rows, strict=True):
        inside, after = calls[-1].context_calls, later.get(calls[-1], ())
        counts = [turn.decisions for turn in own]
        if len(counts) != len(inside):
            raise UserError(
                f"environment: `play` returned {REWARDS}, {STATES} or {ROLE}, but the sampler does "
                f"not say where turns end: a TurnSampler's `assemble` sets `Rollouts.turns`"
            )
        counts += [0] * len(after)
        pairs = zip(counts, (*inside, *after), strict=True)
        turns.append([Turn(count, call.reward, call.state) for count, call in pairs])
    roles = [calls[-1].role for calls in rows]
    return replace(rollouts, turns=turns, roles=roles if any(roles) else None)


def measured(rows: Rows) -> Tally:
    """The mean reward of each of the first turns, `turn_reward/1` and so on.

    rows: the calls of each rollout; those of failed rollouts do not count.
    """
    tally = Tally()
    for call in (call for each in rows.values() for own in each for call in own):
        if call.reward is not None and call.failure is None and call.turn < MOST_LOGGED:
            tally.mean(f"{Family.TURN_REWARD}/{call.turn + 1}", call.reward)
    return tally


def _column(columns: Columns, name: str, call: Call, turns: int) -> Sequence[Any]:
    """A column with one value for each turn; None for each where it was not returned."""
    values = columns.get(name)
    if values is None:
        return [None] * turns
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(
            f"environment: `play` returned {values!r:.100} ({type(values).__name__}) as `{name}`, "
            f"expected a list with one entry for each turn"
        )
    if len(values) != turns:
        raise UserError(
            f"environment: `play` returned {len(values)} `{name}` for an episode in which "
            f"{call.label!r} had {turns} turns: return one for each, None where a turn has none"
        )
    return values


def _number(value: Any) -> float | None:
    if value is None or (isinstance(value, Real) and math.isnan(value)):
        return None
    if not isinstance(value, Real) or math.isinf(value):
        raise UserError(
            f"environment: `play` returned {value!r:.100} ({type(value).__name__}) in `{REWARDS}`, "
            f"expected a finite number for each turn, or None"
        )
    return float(value)


def _name(state: Any, call: Call) -> int | None:
    """A hash of a prompt's draw and a state, which is small and the same on all processes."""
    if state is None:
        return None
    if not _is_plain(state):
        raise UserError(
            f"environment: `play` returned {state!r:.100} ({type(state).__name__}) in `{STATES}`, "
            f"expected what names the state: a string, a number or a tuple of these"
        )
    named = f"{call.episode.draw.number}/{state!r}"
    key = hashlib.blake2b(named.encode(errors="surrogatepass"), digest_size=8)
    return int.from_bytes(key.digest(), "big") >> 1


def _is_plain(state: Any) -> bool:
    if isinstance(state, tuple):
        return all(map(_is_plain, state))
    return state is None or type(state) in (str, int, float, bool)


def _role(columns: Columns) -> str | None:
    role = columns.get(ROLE)
    if role is not None and not isinstance(role, str):
        raise UserError(
            f"environment: `play` returned {role!r:.100} ({type(role).__name__}) as `{ROLE}`, "
            f"expected a word for the side that the reply's player is on"
        )
    return role
