"""Turn rewards: what an environment says of single turns: their rewards, states and roles."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from groupwise.environment import OF_TURNS, ROLE, STATES, TURN_REWARDS, Columns
from groupwise.kit.errors import UserError
from groupwise.kit.metric_names import Family
from groupwise.metrics.tally import Tally
from groupwise.record import Call, Rollout
from groupwise.rollouts import Turn

MOST_LOGGED = 8
"""Turns whose mean rewards are metrics of their own."""


def write(judged: Sequence[Call], rollouts: Mapping[str, Sequence[Rollout]]) -> None:
    """Write on each call what `play` returned of its turn, and on rollouts their turns and roles.

    judged: the calls that rewards judge; rollouts: by player. Raises UserError for columns that do
    not fit the turns.
    """
    with_reward = {call.rollout for call in judged}
    later, roles = dict[Call, Sequence[Call]](), dict[Call, str | None]()
    for call in judged:
        columns = call.columns or {}
        if all(columns.get(name) is None for name in OF_TURNS):
            continue
        of_context = {call.rollout, *(each.rollout for each in call.context_calls)}
        turns = [
            each
            for each in (call, *call.ancestors)
            if each.label == call.label
            and each.reply is not None
            and (each.rollout in of_context or each.rollout not in with_reward)
        ][::-1]
        rewards = [_number(x) for x in _column(columns, TURN_REWARDS, call, len(turns))]
        states = [_name(x, call) for x in _column(columns, STATES, call, len(turns))]
        role = _role(columns)
        for place, turn in enumerate(turns):
            turn.reward, turn.state, roles[turn] = rewards[place], states[place], role
            later[turn] = turns[place + 1 :]
    for rollout in (own for of_player in rollouts.values() for own in of_player) if later else ():
        last = rollout.calls[-1]
        rollout.role = roles.get(last, rollout.role)
        _write_turns(rollout, later.get(last, ()))


def _write_turns(rollout: Rollout, after: Sequence[Call]) -> None:
    """Write the rewards and states of a rollout's turns; after: the later turns of its episode."""
    inside, turns = rollout.calls, rollout.turns
    turns = [Turn(rollout.length)] if turns is None else [*turns]
    if len(turns) != len(inside):
        raise UserError(
            f"environment: `play` returned {TURN_REWARDS}, {STATES} or {ROLE}, but the sampler "
            f"does not say where turns end: a TurnSampler's `assemble` sets `Rollouts.turns`"
        )
    turns += [Turn(0)] * len(after)
    pairs = zip(turns, (*inside, *after), strict=True)
    rollout.turns = [turn._replace(reward=call.reward, state=call.state) for turn, call in pairs]


def measured(rollouts: Iterable[Rollout]) -> Tally:
    """The mean reward of each of the first turns, `turn_reward/1` and so on, without those of
    failed rollouts."""
    tally = Tally()
    usable = [rollout for rollout in rollouts if rollout.failure is None]
    for call in (call for rollout in usable for call in rollout.calls):
        if call.reward is not None and call.turn < MOST_LOGGED:
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
            f"environment: `play` returned {value!r:.100} ({type(value).__name__}) in "
            f"`{TURN_REWARDS}`, expected a finite number for each turn, or None"
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
    named = f"{call.episode.group.number}/{state!r}"
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
