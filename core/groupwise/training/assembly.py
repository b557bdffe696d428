"""Assembly: from the calls of finished episodes to a batch of `Episodes`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, takewhile

import torch

from groupwise.config.learners import SOLE
from groupwise.environment import Columns, Environment, Reply
from groupwise.environments.pool import Pool
from groupwise.environments.single import Single
from groupwise.errors import UserError
from groupwise.policy import Policy
from groupwise.rollouts import Rollouts
from groupwise.training import failures
from groupwise.training.calls import Call, Episode, Part
from groupwise.training.episodes import Episodes, Refusal
from groupwise.training.lineage import NONE, Lineage

ALONE = (Single, Pool)
"""Environments that call a single player once, so that rewards judge its rollouts as they are."""


class Assembly:
    """Collects what players sampled, and yields the episodes of each draw when all are over.

    policies: of the players, by label; trained: whether they are trained on the rollouts, which
    then need their trajectories; compared: see `Episodes`.
    """

    def __init__(
        self,
        environment: Environment,
        episodes: Sequence[Episode],
        policies: Mapping[str, Policy],
        *,
        trained: bool,
        compared: bool,
    ) -> None:
        self.policies, self.trained, self.compared = policies, trained, compared
        # Not by what is sampled, since parts, rounds and processes must have the same form.
        self.alone = type(environment) in ALONE and len(policies) == 1
        self.columns = environment.columns([*policies])
        self.values = {label: environment.refused(label) for label in policies}
        self._open = [[*of_draw] for _, of_draw in groupby(episodes, key=lambda e: id(e.draw))]
        self._added: tuple[Part, Sequence[Call]] | None = None

    def add(self, rollouts: Rollouts, calls: Sequence[Call]) -> None:
        """The completions of these calls, in order."""
        part = Part(rollouts)
        reasons = rollouts.failures or [None] * len(calls)
        truncated = rollouts.truncated.tolist()
        for at, call in enumerate(calls):
            call.part, call.at = part, at
            if reasons[at] is None:
                completion = rollouts.completions[at]
                call.reply = Reply(completion, call.label, truncated[at], source=call)
        self._added = part, calls

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
        by_label = {
            label: [c for e in episodes for c in e.calls if c.label == label and c.part is not None]
            for label in self.policies
        }
        own = {label: _gathered(calls) for label, calls in by_label.items()}
        lost = [episode for episode in episodes if _is_lost(episode)]
        judged = [pair for episode in episodes for pair in _judged(episode)]
        lineage = _lineage(by_label, [call for call, _ in judged])
        seen = next(iter(own.values())) if self.alone else self._seen(own, by_label, judged)
        assembled = Episodes(
            judged=_with_columns(seen, self.columns, [columns for _, columns in judged]),
            indices=[call.episode.index for call, _ in judged],
            players={
                label: None if self.alone else _with_logged(own[label], policy.logged)
                for label, policy in self.policies.items()
            },
            lineage=lineage,
            compared=self.compared,
            values=self.values,
            refusals=[] if self.trained else [*self._refusals(by_label, lineage), *_lost(lost)],
            lost=[episode.draw.number for episode in lost],
            failures=failures.of_episodes(lost)
            | failures.of_policies(
                {
                    "" if label == SOLE else label: replace(
                        rollouts, prompts=[call.episode.draw.row for call in by_label[label]]
                    )
                    for label, rollouts in own.items()
                }
            ),
        )
        for call in (call for calls in by_label.values() for call in calls):
            call.part = call.reply = None  # else they hold what rewards free
        for episode in episodes:
            episode.outcome, episode.assembled = None, True
        return assembled

    def _seen(
        self,
        own: Mapping[str, Rollouts],
        by_label: Mapping[str, Sequence[Call]],
        judged: Sequence[tuple[Call, Columns]],
    ) -> Rollouts:
        """The judged rollouts of all players, in the order of their episodes, as completions of the
        data set's rows; without trajectories."""
        places = {id(call): place for place, (call, _) in enumerate(judged)}
        parts, order = list[Rollouts](), list[int]()
        for label, calls in by_label.items():
            rows = [row for row, call in enumerate(calls) if id(call) in places]
            if rows:
                everything = len(rows) == len(calls)
                parts.append(own[label] if everything else own[label].select(rows))
                order += [places[id(calls[row])] for row in rows]
        if not parts:
            return nothing_drawn()
        if self.compared:
            check_kinds(dict(zip(own, parts, strict=True)))
        facts = set.intersection(*(set(part.facts) for part in parts))
        joined = Rollouts.concat([_bare(part, facts) for part in parts])
        index = torch.tensor(order).argsort()
        joined = joined if torch.equal(index, torch.arange(len(index))) else joined.select(index)
        return replace(
            joined,
            prompts=[call.episode.draw.row for call, _ in judged],
            groups=torch.tensor([call.episode.draw.number for call, _ in judged]),
        )

    def _refusals(
        self, by_label: Mapping[str, Sequence[Call]], lineage: Lineage
    ) -> Iterator[Refusal]:
        """The replies that are not judged, and that nothing follows."""
        calls = [call for each in by_label.values() for call in each]
        for call, judged in zip(calls, lineage.judged.tolist(), strict=True):
            reply, failed = call.reply, call.failure is not None
            if judged != NONE or call.followed or not (failed or call.refused_by):
                continue
            yield Refusal(
                by=call.refused_by or "",
                row=call.episode.draw.row,
                draw=call.episode.draw.number,
                index=call.episode.index,
                written={} if reply is None else {call.label: reply.text},
                value=self.values[call.label],
                failure=call.failure,
            )


def _is_lost(episode: Episode) -> bool:
    """Whether it failed before any reply, so that no row tells of it."""
    return episode.failure is not None and all(call.part is None for call in episode.calls)


def _lost(episodes: Sequence[Episode]) -> Iterator[Refusal]:
    """Records of episodes that failed before any reply."""
    for episode in episodes:
        yield Refusal(
            by="",
            row=episode.draw.row,
            draw=episode.draw.number,
            index=episode.index,
            written={},
            value=0.0,
            failure=episode.failure,
        )


def _judged(episode: Episode) -> list[tuple[Call, Columns]]:
    """The calls whose completions rewards judge, each with the columns of its episode."""
    outcome = episode.outcome
    if outcome is None or isinstance(outcome, Mapping):
        last = [call for call in episode.calls if not call.followed and call.part is not None]
        return [(call, outcome or {}) for call in last]
    return [(reply.source, columns) for reply, columns in outcome]


def _gathered(calls: Sequence[Call]) -> Rollouts:
    """The rollouts of these calls, in order."""
    parts = list(dict.fromkeys(call.part for call in calls if call.part is not None))
    if not parts:
        return nothing_drawn()
    rollouts = parts[0].rollouts
    if len(parts) > 1:
        rollouts = Rollouts.concat([part.rollouts for part in parts])
    starts, start = dict[Part, int](), 0
    for part in parts:
        starts[part], start = start, start + len(part.rollouts)
    rows = [starts[call.part] + call.at for call in calls if call.part is not None]
    if rows != [*range(len(rollouts))]:
        rollouts = rollouts.select(rows)
    if any(call.failure is not None for call in calls):
        rollouts = replace(rollouts, failures=[call.failure for call in calls])
    return rollouts


def _lineage(by_label: Mapping[str, Sequence[Call]], judged: Sequence[Call]) -> Lineage:
    calls = [call for each in by_label.values() for call in each]
    places = {id(call): place for place, call in enumerate(judged)}
    rows = {id(call): row for row, call in enumerate(calls)}
    numbers = [number for number, each in enumerate(by_label.values()) for _ in each]
    return Lineage(
        players=torch.tensor(numbers, dtype=torch.int64),
        draws=torch.tensor([call.episode.draw.number for call in calls], dtype=torch.int64),
        judged=torch.tensor([places.get(id(call), NONE) for call in calls], dtype=torch.int64),
        parents=torch.tensor(
            [rows.get(id(call.parent), NONE) for call in calls], dtype=torch.int64
        ),
        refused=torch.tensor(
            [
                call.refused_by is not None and not call.followed and id(call) not in places
                for call in calls
            ],
            dtype=torch.bool,
        ),
    )


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
    """The same with the columns that environments returned among its facts."""
    returned = dict.fromkeys([*names, *(name for own in columns for name in own)])
    if not returned:
        return rollouts
    own = {name: [given.get(name) for given in columns] for name in returned}
    return replace(rollouts, facts={**rollouts.facts, **own})


def _with_logged(rollouts: Rollouts, logged: Collection[str]) -> Rollouts:
    """The same with these facts only, as plain numbers."""
    names = sorted(logged & rollouts.facts.keys())
    return replace(
        rollouts, facts={n: [float(value) for value in rollouts.facts[n]] for n in names}
    )


def check_kinds(own: Mapping[str, Rollouts]) -> None:
    """Raise UserError if completions of a pool differ in type: no reward could compare them."""
    kinds = {
        label: type(rollouts.completions[0]).__name__
        for label, rollouts in own.items()
        if len(rollouts)
    }
    if len(set(kinds.values())) > 1:
        each = ", ".join(f"{label!r} {kind}" for label, kind in kinds.items())
        raise UserError(
            f"pool: its policies return completions of different types ({each}), which no reward "
            f"can compare; a pool needs policies whose completions have the same form"
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
