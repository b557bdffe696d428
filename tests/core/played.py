"""What was played and trained, as tests of comparisons read it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from tests.core.numbered import Record, Single, Turns, number_of, numbers_in
from tests.core.programs import Asked, Asks, Program, rows

from groupwise import Rollouts
from groupwise.algorithms.grpo import GRPO
from groupwise.testing import play_episodes
from groupwise_algorithms.dr_grpo import DrGRPO

SIZE = 3
"""Episodes of a prompt, and candidates of a group."""


# ---- how a record is read: the only part of this file that knows it


def rollouts_of(episodes: Any, label: str) -> Rollouts:
    """What a player is trained on, before failed ones are left out."""
    return episodes.rollouts(label)


def comparisons_of(rollouts: Rollouts) -> list[Hashable]:
    """For each row what it is compared by; equal on all processes."""
    return rollouts.groups.tolist()


def weighed_as(rollouts: Rollouts) -> list[Hashable]:
    """For each row the number of the episode that it counts as."""
    own = rollouts.episodes
    return [*range(len(rollouts))] if own is None else own.tolist()


def judged_texts(episodes: Any) -> Sequence[str]:
    """The completions that rewards judge."""
    return episodes.judged.completions


def sampled_decisions(trainer: Any) -> int:
    """What a trainer counts as drawn in its next step."""
    return trainer.experience.next(trainer.state).metrics["sampled_decisions"]


def batch_of(lab: Any, episodes: Any, label: str, values: Sequence[float]) -> Any:
    """A player's `rollouts` and `scores`, with these rewards of the judged completions."""
    scores = lab.scores_of(torch.tensor(values, dtype=torch.float64))
    own = lab.score(episodes, scores)[label]
    return SimpleNamespace(rollouts=episodes.rollouts(label), scores=own)


# ---- what was played


@dataclass
class Row:
    """A row of a player; calls: those of which it trains decisions, in order."""

    label: str
    calls: list[Asked]
    numbers: list[int]
    symbols: list[int]
    comparison: Hashable
    episode: Hashable


class Played:
    """A program that was played, perhaps in several parts, as several processes do."""

    def __init__(
        self,
        steps: Sequence[Any],
        *draws: Mapping[int, Any],
        apart: bool = False,
        batch: int = 512,
        judges_last: bool = True,
    ) -> None:
        self.record = Record()
        self.program = Program(steps, apart=apart, judges_last=judges_last)
        policies = {"turns": Turns(self.record), "single": Single(self.record)}
        self.episodes = [
            play_episodes(self.program, policies, part, size=SIZE, batch=batch, seed=3)
            for part in draws
        ]
        if self.program.plays != self.program.ended:
            raise RuntimeError("an episode of a program has failed")
        self.asked = {number: own for own in self.program.asked for number in own.numbers}
        self.rows = [
            row for part in self.episodes for label in policies for row in self._of(part, label)
        ]

    def _of(self, part: Any, label: str) -> list[Row]:
        rollouts = rollouts_of(part, label)
        keys = zip(comparisons_of(rollouts), weighed_as(rollouts), strict=True)
        trained = numbers_in(rollouts) if len(rollouts) else []
        symbols = rollouts.trajectory.get("symbols", [])
        return [
            Row(
                label=label,
                calls=[self.asked[number] for number in own if number in self.asked],
                numbers=own,
                symbols=line[here].tolist(),
                comparison=(label, comparison),
                episode=(label, episode),
            )
            for own, line, here, (comparison, episode) in zip(
                trained, symbols, rollouts.mask, keys, strict=True
            )
        ]

    @property
    def compared(self) -> list[list[Row]]:
        """Rows that are compared with each other."""
        return together(self.rows, lambda row: row.comparison)


def together(each: Sequence[Any], key: Callable[[Any], Hashable]) -> list[list[Any]]:
    parts = defaultdict(list)
    for one in each:
        parts[key(one)].append(one)
    return [*parts.values()]


class Weighed(GRPO):
    """Notes of each update the weight of each decision, by its number."""

    def __init__(self, policy: Any, credit: str = "outcome") -> None:
        super().__init__(GRPO.Config(credit=credit))
        self.policy, self.updates = policy, list[Counter[int]]()

    def targets(self, scores, rollouts, inputs):
        self.updates.append(Counter())
        return super().targets(scores, rollouts, inputs)

    def active(self, targets):
        return (targets["weights"] != 0).any(dim=1)

    def loss(self, current, batch):
        pairs = zip(self.policy.trained.flatten(), batch["weights"].flatten(), strict=True)
        for number, weight in pairs:
            if weight:
                self.updates[-1][int(number)] += float(weight)
        return super().loss(current, batch)


def weights_of(lab: Any, steps: Sequence[Any], kind: type, credit: str, updates: int) -> Any:
    """For each update of a step the weights of the episodes, by episode; and the program."""
    policy, program = kind(Record()), Program(steps, talkers=["policy"] if kind is Turns else [])
    algorithm = Weighed(policy, credit)
    trainer = lab.trainer(
        policy,
        algorithm,
        source=[*rows(4).values()],
        held_out=0.0,
        group_size=SIZE,
        updates_per_rollout=updates,
        objects={("environment",): program},
        sections={"environment": "program"},
    )
    lab.step(trainer)
    play_of = {n: call.play for call in program.asked for n in call.numbers}
    each = []
    for update in algorithm.updates:
        own, play = defaultdict(float), None
        for number, weight in sorted(update.items()):
            play = play_of.get(number, play)  # that of the decision before, in a completion
            own[play] += weight
        each.append(dict(own))
    return each, program


def episodes_of(
    function: Callable[..., Any],
    *kinds: type,
    count: int = 1,
    first: int = 0,
    size: int = SIZE,
    judges: Sequence[str] = (),
) -> tuple[Any, Record]:
    """The episodes of a function of the row and the players; kinds: of these, labelled "0", ..."""
    record = Record()
    policies = {str(n): kind(record) for n, kind in enumerate(kinds)}
    environment = Asks(function, judges)
    return play_episodes(environment, policies, rows(count, first), size=size, seed=3), record


def rows_by_decision(rollouts: Rollouts) -> Mapping[int, list[int]]:
    """The rows in which a decision is trained, by its number."""
    rows_of = defaultdict(list)
    for row, own in enumerate(numbers_in(rollouts)):
        for number in own:
            rows_of[number].append(row)
    return rows_of


def first_rows(rollouts: Rollouts, replies: Sequence[Any]) -> list[int]:
    """The row of each reply, which must be trained in one alone."""
    rows_of = rows_by_decision(rollouts)
    each = [rows_of[number_of(reply.text)] for reply in replies]
    assert all(len(own) == 1 for own in each)
    return [row for (row,) in each]


def valued(lab: Any, episodes: Any, value: Callable[[str], float], label: str = "0") -> Any:
    """A player's batch, rewards being a function of the judged texts, and its advantages."""
    batch = batch_of(lab, episodes, label, [*map(value, judged_texts(episodes))])
    own = DrGRPO(DrGRPO.Config(length=9)).estimate(batch.scores, batch.rollouts, {})
    return batch, own.tolist()
