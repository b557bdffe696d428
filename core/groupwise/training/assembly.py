"""Assembly: from the calls of finished episodes to a batch of `Episodes`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from typing import Any

import torch

from groupwise.environment import Columns, Environment, Reply
from groupwise.errors import UserError
from groupwise.rollouts import Rollouts
from groupwise.sampler import Drawn
from groupwise.tool_call import ToolCall, calls_of
from groupwise.training import turns
from groupwise.training.calls import Call, Episode, Part, Rows, ancestors, in_rows
from groupwise.training.endings import ENDED, with_endings, word_of
from groupwise.training.episodes import Episodes
from groupwise.training.sampling import Sampling
from groupwise.training.turn_rewards import RESERVED, note, with_turns


class Assembly:
    """Collects what players sampled, and yields the episodes of each draw when all are over.

    samplings: of the players, by label; columns: those of the environment; trained: whether
    players are trained on the rollouts, which then need their trajectories; compared: see
    `Episodes`.
    """

    def __init__(
        self,
        environment: Environment,
        episodes: Sequence[Episode],
        samplings: Mapping[str, Sampling],
        *,
        columns: Sequence[str],
        trained: bool,
        compared: bool,
    ) -> None:
        self.samplings, self.trained, self.compared = samplings, trained, compared
        self.columns = columns
        self.refused = {label: environment.refused(label) for label in samplings}
        self.judged = environment.judged([*samplings])
        # Not by what is sampled, since parts, rounds and processes must have the same form.
        self.plain = environment.one_call and len(samplings) == 1
        self._open = [[*of_draw] for _, of_draw in groupby(episodes, key=lambda e: id(e.draw))]
        self._added: tuple[Part, Sequence[Call]] | None = None

    def add(self, rollouts: Rollouts, calls: Sequence[Call]) -> None:
        """The completions of these calls, in order."""
        part = Part(rollouts)
        reasons = rollouts.failures or [None] * len(calls)
        truncated = rollouts.truncated.tolist()
        for at, call in enumerate(calls):
            call.part, call.at, call.is_drawn = part, at, True
            if reasons[at] is None:
                completion = rollouts.completions[at]
                made = calls_of(completion)
                _count(call, made)
                call.reply = Reply(completion, call.label, truncated[at], made, source=call)
        self._added = part, calls

    def add_turns(self, pairs: Sequence[tuple[Any, Drawn]], calls: Sequence[Call]) -> None:
        """The turns of these calls, in order, each with its context afterwards."""
        for call, (context, turn) in zip(calls, pairs, strict=True):
            call.context, call.drawn, call.is_drawn = context, turn, True
            if turn.ended != "failed":
                sampler = self.samplings[call.label].turn_sampler
                made, content = sampler.tool_calls(context)
                _count(call, made)
                if not made and call.row.get("tools"):
                    call.unparsed = int(sampler.resembles_call(turn.text))
                cut = turn.ended == "length"
                call.reply = Reply(turn.text, call.label, cut, tuple(made), content, source=call)

    def finished(self) -> Iterator[Episodes]:
        """The episodes of the next draws if these are over; in the order of the draws."""
        over = [*takewhile(lambda of_draw: all(e.over for e in of_draw), self._open)]
        if over:
            self._open = self._open[len(over) :]
            yield self._assembled([episode for of_draw in over for episode in of_draw])
        if self._added is not None:
            part, calls = self._added
            if not all(call.episode.assembled for call in calls):
                part.rollouts = self._light(part.rollouts)
            self._added = None

    def _light(self, rollouts: Rollouts) -> Rollouts:
        """Without what it does not need while it waits for further calls of its episodes."""
        if not self.trained:
            rollouts = replace(rollouts, trajectory={})
        return rollouts.with_facts_on_cpu()

    def _assembled(self, episodes: Sequence[Episode]) -> Episodes:
        for episode in episodes:
            episode.calls = episode.drawn
        rows = {
            label: in_rows([c for e in episodes for c in e.calls if c.label == label])
            for label in self.samplings
        }
        judged = [pair for episode in episodes for pair in self._judged(episode)]
        judged_calls = [call for call, _ in judged]
        words = {call: word_of(call, columns) for call, columns in judged}
        later = note(judged, rows)
        players = {
            label: with_turns(self._rollouts(label, each, words), each, later)
            for label, each in rows.items()
        }
        rollouts = (
            next(iter(players.values()))
            if self.plain
            else self._joined(players, rows, judged_calls)
        )
        assembled = Episodes(
            judged=_with_columns(rollouts, self.columns, [columns for _, columns in judged]),
            judged_calls=judged_calls,
            players={
                label: None if self.plain else _with_logged(players[label], sampling.policy.logged)
                for label, sampling in self.samplings.items()
            },
            calls=rows,
            compared=self.compared,
            refused=self.refused,
            lost=[episode for episode in episodes if _is_lost(episode)],
        )
        for call in (call for each in rows.values() for calls in each for call in calls):
            call.part = call.context = call.drawn = None  # else they hold what rewards free
            if call.refused_by is None and call.failure is None:  # others may be shown
                call.reply = None
        for episode in episodes:
            episode.outcome, episode.assembled = None, True
        return assembled

    def _judged(self, episode: Episode) -> list[tuple[Call, Columns]]:
        """The calls whose completions rewards judge, each with the columns of its episode."""
        outcome = episode.outcome
        if outcome is None or isinstance(outcome, Mapping):
            last = [call for call in episode.calls if not call.is_followed]
            judged = [self._latest_judged(call) for call in last]
            return [(call, outcome or {}) for call in dict.fromkeys(judged) if call is not None]
        return [_pair(each) for each in (outcome if isinstance(outcome, Sequence) else [outcome])]

    def _latest_judged(self, call: Call) -> Call | None:
        """The call, or the latest one before it, whose player is judged; none before a refused
        one."""
        line = (call, *(ancestors(call) if call.refused_by is None else ()))
        return next((each for each in line if each.label in self.judged), None)

    def _rollouts(
        self, label: str, rows: Sequence[Sequence[Call]], words: Mapping[Call, str | None]
    ) -> Rollouts:
        """The rollouts of a player, in order; rows: the calls of each; words: by judged call, its
        environment's word for why the episode ended."""
        if rows and rows[0][0].context is not None:
            rollouts = self.samplings[label].assemble(
                [calls[0].row for calls in rows],
                [calls[-1].context for calls in rows],
                [calls[0].group for calls in rows],
            )
            if self.trained:
                turns.compare(self.samplings[label].turn_sampler, rollouts, rows)
        else:
            rollouts = _gathered([calls[0] for calls in rows], trained=self.trained)
        if not self.plain:
            episodes = [calls[0].episode_number for calls in rows]
            rollouts = replace(rollouts, episodes=torch.tensor(episodes, dtype=torch.int64))
        pairs = zip(rollouts.failures or [None] * len(rows), rows, strict=True)
        reasons = [reason or calls[0].episode.failure for reason, calls in pairs]
        for reason, calls in zip(reasons, rows, strict=True):
            for call in calls:
                call.failure = reason
        if any(reason is not None for reason in reasons):
            rollouts = replace(rollouts, failures=reasons)
        return with_endings(rollouts, rows, words)

    def _joined(
        self, players: Mapping[str, Rollouts], rows: Rows, judged: Sequence[Call]
    ) -> Rollouts:
        """The judged rollouts of all players, in the order of their episodes, as completions of the
        data set's rows; without trajectories."""
        places = {call: place for place, call in enumerate(judged)}
        parts, order = dict[str, Rollouts](), list[int]()
        for label, of_player in rows.items():
            chosen = {
                row: places[call]
                for row, calls in enumerate(of_player)
                for call in calls
                if call in places
            }
            if chosen:
                everything = len(chosen) == len(of_player)
                parts[label] = players[label] if everything else players[label].select([*chosen])
                order += chosen.values()
        if not parts:
            return nothing_drawn()
        if len(order) < len(judged):
            raise UserError(
                "environment: `play` returned several replies that are turns of one rollout, which "
                "has one reward; return the last of them"
            )
        if self.compared:
            check_kinds(parts)
        facts = set.intersection(*(set(part.facts) for part in parts.values()))
        joined = Rollouts.concat([_bare(part, facts) for part in parts.values()])
        index = torch.tensor(order).argsort()
        joined = joined if torch.equal(index, torch.arange(len(index))) else joined.select(index)
        return replace(
            joined,
            prompts=[call.episode.draw.row for call in judged],
            groups=torch.tensor([call.episode.draw.number for call in judged]),
        )


def _count(call: Call, made: Sequence[ToolCall]) -> None:
    """Count the calls of tools in a turn."""
    call.parsed = sum(each.fault is None for each in made)
    call.unparsed = len(made) - call.parsed


def _is_lost(episode: Episode) -> bool:
    """Whether it failed before any reply, so that no row tells of it."""
    return episode.failure is not None and not episode.calls


def _pair(returned: object) -> tuple[Call, Columns]:
    """A reply and its columns, of what `play` returned; raises UserError for anything else."""
    match returned:
        case (Reply(source=call), Mapping() as columns):
            return call, columns
    raise UserError(
        f"environment: `play` returned {returned!r:.200}, expected a mapping with columns, "
        f"(reply, columns) pairs in a list, or None"
    )


def _gathered(calls: Sequence[Call], *, trained: bool) -> Rollouts:
    """The rollouts of these calls, in order; of several parts without trajectories unless they are
    trained on, since those that had to wait have lost theirs."""
    parts = list(dict.fromkeys(call.part for call in calls if call.part is not None))
    if not parts:
        return nothing_drawn()
    rollouts = parts[0].rollouts
    if len(parts) > 1:
        kept = [part.rollouts for part in parts]
        rollouts = Rollouts.concat(kept if trained else [replace(r, trajectory={}) for r in kept])
    starts, start = dict[Part, int](), 0
    for part in parts:
        starts[part], start = start, start + len(part.rollouts)
    rows = [starts[call.part] + call.at for call in calls if call.part is not None]
    if rows != [*range(len(rollouts))]:
        rollouts = rollouts.select(rows)
    return rollouts


def _bare(rollouts: Rollouts, facts: Collection[str]) -> Rollouts:
    """What rewards and metrics need, in CPU memory."""
    rollouts = rollouts.with_facts_on_cpu()
    return replace(
        rollouts,
        trajectory={},
        facts={name: rollouts.facts[name] for name in sorted(facts)},
        groups=rollouts.groups.cpu(),
        mask=rollouts.mask.cpu(),
        truncated=rollouts.truncated.cpu(),
        sampler_log_probs=None,
    )


def _with_columns(rollouts: Rollouts, names: Sequence[str], columns: Sequence[Columns]) -> Rollouts:
    """The same with the columns that environments returned among its facts; names: those that are
    always there. What is said of turns is among them only if it is named."""
    others = (name for episode in columns for name in episode if name not in (ENDED, *RESERVED))
    returned = dict.fromkeys([*names, *others])
    if not returned:
        return rollouts
    facts = {name: [episode.get(name) for episode in columns] for name in returned}
    return replace(rollouts, facts={**rollouts.facts, **facts})


def _with_logged(rollouts: Rollouts, logged: Collection[str]) -> Rollouts:
    """The same with these facts only, as plain numbers."""
    names = sorted(logged & rollouts.facts.keys())
    return replace(
        rollouts, facts={n: [float(value) for value in rollouts.facts[n]] for n in names}
    )


def check_kinds(own: Mapping[str, Rollouts]) -> None:
    """Raise UserError if completions of casts that share groups differ in type: no reward could
    compare them."""
    kinds = {
        label: type(rollouts.completions[0]).__name__
        for label, rollouts in own.items()
        if len(rollouts)
    }
    if len(set(kinds.values())) > 1:
        each = ", ".join(f"{label!r} {kind}" for label, kind in kinds.items())
        raise UserError(
            f"the players whose completions are compared return different types ({each}), which no "
            f"reward can compare; the casts of an environment (the policies of a pool) need "
            f"completions of the same form"
        )


def nothing_drawn() -> Rollouts:
    """An empty batch of rollouts."""
    return Rollouts(
        prompts=[],
        completions=[],
        groups=torch.empty(0, dtype=torch.int64),
        mask=torch.empty(0, 0, dtype=torch.bool),
        truncated=torch.empty(0, dtype=torch.bool),
    )
