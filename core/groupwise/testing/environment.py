"""check_environment: the properties that training requires of an environment; play_episodes."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch

from groupwise.config.learners import SOLE
from groupwise.environment import Environment
from groupwise.policy import Policy
from groupwise.prompts.draws import Draw
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Purpose
from groupwise.testing.law import hold, law
from groupwise.training.episode_sampler import EpisodeSampler
from groupwise.training.episodes import Episodes
from groupwise.training.sampling import Sampling

Rows = Sequence[Mapping[str, Any]]
Answer = Callable[[Any, random.Random], Any]
MOST_CALLS = 200
"""Calls of players in one episode; an environment that makes more has no limit."""
REASON = "it fails in this test"


def check_environment(
    environment: Environment,
    rows: Rows,
    players: Answer | Mapping[str, Answer],
    *,
    episodes: int = 4,
) -> None:
    """Check an environment without a model. Raises AssertionError, naming the law that is broken.

    rows: of the data set, two or more. players: for each label a function that plays the player: it
    is called with the prompt (text or messages) and a generator seeded for this completion, and
    returns the completion; a function alone stands for a run with one policy. Let it take every way
    through the environment, also the wrong ones: calls of tools that do not exist, arguments that
    are not valid. episodes: of each row.
    """
    if len(rows) < 2:
        raise ValueError(f"check_environment: needs two rows or more, received {len(rows)}")
    answers = players if isinstance(players, Mapping) else {SOLE: players}
    case = Case(environment, rows, dict(answers), episodes)
    hold(type(environment).__name__, LAWS, case)


def play_episodes(
    environment: Environment,
    policies: Mapping[str, Policy],
    rows: Rows | Mapping[int, Mapping[str, Any]],
    *,
    size: int = 4,
    batch: int = 512,
    seed: int = 0,
    purpose: Purpose = "train",
) -> Episodes:
    """Play `size` episodes of each row, as a run does, without closing the environment.

    policies: by label; "policy" is the label of a run's only one; rows: of the data set, numbered
    in order, or by the numbers of their draws, of which groups and seeds are made; size: also the
    completions of `Player.group`; batch: completions that are sampled at a time; seed: of the run;
    purpose: of an evaluation if it is not "train", whose seeds are others.
    """
    samplings = {
        label: Sampling(policy, policy, seed=seed, batch=batch)
        for label, policy in policies.items()
    }
    numbered = rows if isinstance(rows, Mapping) else dict(enumerate(rows))
    draws = [Draw(number, row) for number, row in numbered.items()]
    sizes = dict.fromkeys(samplings, size)
    with closing(EpisodeSampler(_Open(environment), samplings, sizes)) as sampler:
        sampler.begin(0)
        sampler.follow({}, 0)
        if purpose == "train":
            return Episodes.concat([*sampler.draw(draws)])
        (cast,) = sampler.casts
        played = sampler.evaluate(cast, draws, size, purpose, space="evaluation")
        return Episodes.concat([*played])


@dataclass
class Case:
    """An environment, its rows and players; size: episodes of each row."""

    environment: Environment
    rows: Rows
    answers: Mapping[str, Answer]
    size: int
    closed: bool = field(default=False)

    def play(self, *, batch: int = 512, fails: int = 0, refuses: bool = False) -> Episodes:
        """All episodes; batch: completions sampled at a time; fails: one completion in so many
        fails; refuses: whether players refuse every prompt that is not a row's."""
        players = {
            label: Scripted(answer, fails=fails, refuses=refuses)
            for label, answer in self.answers.items()
        }
        return play_episodes(self.environment, players, self.rows, size=self.size, batch=batch)


class _Open(Environment):
    """The same environment, without its `close`: it plays several times."""

    def __init__(self, environment: Environment) -> None:
        self.casts, self.columns = environment.casts, environment.columns  # type: ignore[method-assign]
        self.judged, self.refused = environment.judged, environment.refused  # type: ignore[method-assign]
        self.receivers, self.groups = environment.receivers, environment.groups  # type: ignore[method-assign]
        self.one_call, self.multi_turn = environment.one_call, environment.multi_turn  # type: ignore[misc]
        self.environment = environment

    async def play(self, row: Any, players: Any) -> Any:
        return await self.environment.play(row, players)


class Scripted(Policy):
    """A policy whose completions are those of a function; each is one decision."""

    greedy = False

    def __init__(self, answer: Answer, *, fails: int, refuses: bool) -> None:
        super().__init__()
        self.answer, self.fails, self.refuses = answer, fails, refuses
        self.calls = 0

    def skips(self, row: Mapping[str, Any]) -> bool:
        return self.refuses

    def sample(
        self,
        prompts: Rows,
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: str = "train",
    ) -> Rollouts:
        rows = [row for row in prompts for _ in range(group_size)]
        self.calls += len(rows)
        completions = [
            self.answer(row["prompt"], random.Random(seed))
            for row, seed in zip(rows, seeds, strict=True)
        ]
        failed = [bool(self.fails) and seed % self.fails == 0 for seed in seeds]
        return Rollouts(
            prompts=rows,
            completions=completions,
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            mask=torch.ones(len(rows), 1, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
            failures=[REASON if each else None for each in failed],
        )

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        return LogProbs(log_probs=torch.zeros(rollouts.mask.shape)[:, decisions])


def _record(episodes: Episodes) -> list[Any]:
    """What was played, without tensors."""
    rows = [episodes.rollouts(label) for label in episodes.players]
    judged = episodes.judged
    return [
        *([*map(repr, own.completions)] for own in rows),
        [repr(row) for own in rows for row in own.prompts],
        {name: [*map(repr, column)] for name, column in judged.facts.items()},
    ]


@law(
    "every episode ends, and its last completions are judged",
    hint="`play`: a limit of its turns; what it returns: columns, or (reply, columns) pairs with "
    "replies of its own players",
)
def ends(case: Case) -> str | None:
    episodes = case.play()
    lineage = episodes.lineage
    longest = int(torch.bincount(lineage.draws).max()) / case.size
    if longest > MOST_CALLS:
        return f"an episode called its players {longest:.0f} times"
    labels = case.environment.judged([*case.answers])
    judged = {label for n, label in enumerate(episodes.players) if _judges(lineage, n)}
    if other := sorted(judged - {*labels}):
        return f"completions of {other[0]!r} are judged, which `judged` does not name"
    if failures := [*episodes.failures.values()]:
        return failures[0]
    missing = {*range(len(case.rows))} - {*episodes.judged.groups.tolist()}
    return f"nothing is judged of row {min(missing)}" if missing else None


def _judges(lineage: Any, player: int) -> bool:
    return bool((lineage.judged[lineage.of(player)] >= 0).any())


@law(
    "`columns` names what `play` returns",
    hint="`columns`: the names of the mapping that `play` returns, in every way through it",
)
def columns(case: Case) -> str | None:
    declared = {*case.environment.columns([*case.answers])}
    returned = {*case.play().judged.facts}
    if declared != returned:
        return f"`columns` are {sorted(declared)}, and it returned {sorted(returned)}"
    return None


@law(
    "an episode depends on its row and its players' completions alone",
    hint="no generator, counter, clock or object that episodes share; seed what is random by rows",
)
def alone(case: Case) -> str | None:
    expected = _record(case.play())
    if _record(case.play()) != expected:
        return "played again, it went another way"
    if _record(case.play(batch=1)) != expected:
        return "with completions sampled one by one, it went another way"
    return None


@law("rows are not changed", hint="`play` must copy the messages of a row before it adds to them")
def rows_unchanged(case: Case) -> str | None:
    before = [repr(row) for row in case.rows]
    case.play()
    changed = [n for n, row in enumerate(case.rows) if repr(row) != before[n]]
    return f"row {changed[0]} is another one after an episode" if changed else None


@law(
    "a completion that failed, and a context that is refused, end an episode and nothing else",
    hint="`play` may catch EpisodeEnded; a broad `except` that also catches it must raise it again",
)
def failures(case: Case) -> str | None:
    for episodes in (case.play(fails=2), case.play(refuses=True)):
        reasons = [why for why in episodes.failures.values() if REASON not in why]
        if reasons:
            return reasons[0]
    return None


@law("`close` can be called", hint="`close` is called once at the end, also before any episode")
def closes(case: Case) -> str | None:
    players = {
        label: Scripted(answer, fails=0, refuses=False) for label, answer in case.answers.items()
    }
    samplings = {label: Sampling(p, p, seed=0, batch=8) for label, p in players.items()}
    EpisodeSampler(case.environment, samplings, dict.fromkeys(samplings, case.size)).close()
    return None


LAWS = (ends, columns, alone, rows_unchanged, failures, closes)
