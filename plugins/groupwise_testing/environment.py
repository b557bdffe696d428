"""check_environment: the properties that training requires of an environment."""

import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import zip_longest
from typing import Any

import torch

from groupwise import attachments
from groupwise.environment import ENVIRONMENTS, Context, Environment, Outcome, Player, Reply
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.episodes.sampling import Sampling
from groupwise.kit.media import medium_of
from groupwise.plugins import overrides
from groupwise.policy import Policy
from groupwise.prompt_source import Row
from groupwise.record import Group
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.tool_call import ToolCall, assistant_message
from groupwise_testing.draws import Rows
from groupwise_testing.laws import hold, law
from groupwise_testing.playing import Episodes, played

Script = Callable[[Any, random.Random], Any]
"""Plays a player: from a prompt and a generator to a completion."""
MOST_CALLS = 200
"""Calls of players in one episode; an environment that makes more has no limit."""
REASON = "it fails in this test"


def check_environment(
    environment: Environment,
    rows: Rows,
    players: Script | Mapping[str, Script],
    *,
    episodes: int = 4,
) -> None:
    """Check an environment without a model. Raises AssertionError, naming the law that is broken.

    rows: of the data set, two or more. players: for each label a function that plays the player: it
    is called with the prompt (text or messages) and a generator seeded for this completion, and
    returns the completion, for calls of tools one or several `ToolCall`s; a function alone stands
    for a run with one policy. Let it take every way through the environment, also the wrong ones:
    calls of tools that do not exist, arguments that are not valid, a `ToolCall` with a `fault`.
    episodes: of each row.
    """
    if len(rows) < 2:
        raise ValueError(f"check_environment: needs two rows or more, received {len(rows)}")
    scripts = players if isinstance(players, Mapping) else {"policy": players}
    hold(type(environment).__name__, LAWS, Case(environment, rows, scripts, episodes))


class Case:
    """An environment, its rows and players; size: episodes of each row."""

    def __init__(
        self, environment: Environment, rows: Rows, scripts: Mapping[str, Script], size: int
    ) -> None:
        self.environment, self.rows, self.size = counted(environment), rows, size
        self.players = {label: Scripted(script) for label, script in scripts.items()}
        self.labels = [*scripts]

    @cached_property
    def sampler(self) -> EpisodeSampler:
        """One for all laws, as for a whole run: its episodes are played in the same event loop."""
        samplings = {
            label: Sampling(player, player, seed=0, batch=1)
            for label, player in self.players.items()
        }
        sampler = EpisodeSampler(self.environment, samplings, dict.fromkeys(samplings, self.size))
        sampler.begin(0)
        sampler.follow({}, 0)
        return sampler

    def play(self, *, batch: int = 512, fails: int = 0, refuses: bool = False) -> Episodes:
        """All episodes; batch: completions sampled at a time; fails: one completion in so many
        fails; refuses: whether players refuse every prompt that is not a row's."""
        for sampling in self.sampler.samplings.values():
            sampling.batch = batch
        for player in self.players.values():
            player.fails, player.refuses = fails, refuses
        return played(self.sampler, [Group(number, row) for number, row in enumerate(self.rows)])

    @cached_property
    def episodes(self) -> Episodes:
        """As in a run; most laws use these."""
        return self.play()


def counted(environment: Environment) -> Environment:
    """The environment with episodes that fail at too many calls of their players, and with players
    that take any `limit`: a scripted completion is one decision."""
    checked, play = copy(environment), environment.play

    @wraps(play)  # so that it receives the seed where `play` takes it
    async def play_counted(row: Row, players: Mapping[str, Player], **seed: int) -> Outcome:
        calls = Calls()
        counted = {label: Counted(own, calls) for label, own in players.items()}
        return await play(row, counted, **seed)

    checked.play = play_counted  # type: ignore[method-assign]
    return checked


class Calls:
    """How often an episode called its players."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1
        if self.count > MOST_CALLS:
            raise RuntimeError(f"an episode called its players more than {MOST_CALLS} times")


@dataclass(frozen=True)
class Counted:
    """A player whose calls are counted."""

    player: Player
    calls: Calls

    async def __call__(
        self, context: Context, *, limit: int | None = None, **options: Any
    ) -> Reply:
        self.calls.add()
        return await self.player(context, **options)

    async def group(
        self, context: Context, *, limit: int | None = None, **options: Any
    ) -> Sequence[Reply]:
        self.calls.add()
        return await self.player.group(context, **options)

    async def shortened(self, content: Any, most: int) -> Any:
        return await self.player.shortened(content, most)


class Scripted(Policy):
    """A policy whose completions are those of a function; each is one decision.

    fails: one completion in so many fails, 0 for none; refuses: whether it skips every row.
    """

    greedy = False

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script, self.fails, self.refuses = script, 0, False

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
        completions = [
            _completion(self.script(row["prompt"], random.Random(seed)))
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


def _completion(written: Any) -> Any:
    """What a script returned, calls of tools as a message."""
    calls = [written] if isinstance(written, ToolCall) else written
    if not (isinstance(calls, list) and calls and isinstance(calls[0], ToolCall)):
        return written
    return [{**assistant_message(""), "tool_calls": calls}]


def _record(episodes: Episodes) -> dict[str, list[str]]:
    """What was played, in the order in which it can differ; without the seconds that it took."""
    record: dict[str, list[str]] = {}
    for label in episodes.labels:
        rollouts = episodes.rollouts(label)
        record[f"the context of a completion of {label!r}"] = [*map(_told, rollouts.prompts)]
        record[f"a completion of {label!r}"] = [*map(_told, rollouts.completions)]
        record[f"the turns of {label!r}"] = [repr((rollouts.turns, rollouts.roles))]
    for name, column in episodes.judged.facts.items():
        if name != ENVIRONMENTS and not name.startswith("_") and not name.endswith("_seconds"):
            record[f"column {name!r}"] = [*map(_told, column)]
    record["`ended`"] = [*map(repr, episodes.judged.ended)]
    return record


def _told(value: Any) -> str:
    """A value in words that are equal where it is, pictures and videos in it by their content."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key!r}: {_told(own)}" for key, own in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_told, value))}]"
    if (medium := medium_of(value)) is None:
        return repr(value)
    form, content = medium.content(value)
    return f"<{form} {attachments.digest(content)}>"


def _difference(one: Mapping[str, list[str]], other: Mapping[str, list[str]]) -> str | None:
    """The first difference of two records, in words."""
    for name, values in one.items():
        for value, another in zip_longest(values, other.get(name, ()), fillvalue="nothing"):
            if value != another:
                return f"{name} was {value:.200}, and then {another:.200}"
    return None


@law(
    "methods with the names of an Environment's are an Environment's",
    hint="a helper of your own needs another name, such as `_columns`",
)
def methods(case: Case) -> str | None:
    return overrides.problem_of(case.environment, Environment)


@law(
    "every episode ends, and its last completions are judged",
    hint="`play`: a limit of its turns; what it returns: columns, or (reply, columns) pairs with "
    "replies of its own players",
)
def ends(case: Case) -> str | None:
    episodes = case.episodes
    if failures := [*episodes.failures.values()]:
        return failures[0]
    named = {*case.environment.judged(case.labels)}
    judged = {call.label for call in episodes.judged_calls}
    for label in episodes.labels:
        if label in judged - named:
            return f"completions of {label!r} are judged, which `judged` does not name"
    missing = {*range(len(case.rows))} - {*episodes.judged.groups.tolist()}
    return f"nothing is judged of row {min(missing)}" if missing else None


@law(
    "`columns` names what `play` returns",
    hint="`columns`: the names of the mapping that `play` returns, in every way through it",
)
def columns(case: Case) -> str | None:
    declared = {*case.environment.columns(case.labels)}
    returned = {name for name in case.episodes.judged.facts if not name.startswith("_")}
    if others := sorted(returned - declared):
        return f"`columns` are {sorted(declared)}, and it also returned {others}"
    return None


@law(
    "an episode depends on its row and its players' completions alone",
    hint="no generator, counter, clock or object that episodes share; chance only by `seed`, a "
    "parameter of `play`",
)
def alone(case: Case) -> str | None:
    expected = _record(case.episodes)
    if again := _difference(expected, _record(case.play())):
        return f"played again, it went another way: {again}"
    if alone := _difference(expected, _record(case.play(batch=1))):
        return f"with completions sampled one by one, it went another way: {alone}"
    return None


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
    return case.sampler.close()


LAWS = (methods, ends, columns, alone, failures, closes)
