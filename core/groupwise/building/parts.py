"""Parts: the parts of a run that need no weights, built and checked to fit together."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from groupwise.algorithm import OBSERVATIONS, Algorithm
from groupwise.building.players import Players
from groupwise.config.learners import LearnerSettings
from groupwise.config.sections import RunConfig
from groupwise.experience.accuracy import Accuracy
from groupwise.kit.errors import UserError
from groupwise.kit.schedule import Schedule
from groupwise.kit.section import KeyPath
from groupwise.plugins.plugin import Plugin
from groupwise.plugins.resolved import ResolvedConfig
from groupwise.policy import Policy
from groupwise.prompt_source import PlacedRow, PromptSource, Row
from groupwise.prompts.draws import SCAN, Prompts
from groupwise.record import Group
from groupwise.registry import installed, target_of
from groupwise.rewards import Reward
from groupwise.rewards.errors import MissingColumnError
from groupwise.sampler import Sampler
from groupwise.scoring.scorer import Scorer

ENDLESS = 2_000
"""Rows to check before a run if the source has more than `SCAN`: such sources generate them."""
SECONDS_OF_CHECKING = 60.0
"""The most seconds to check rows before a run: some sources are slow."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a run that need no weights, built and checked to fit together.

    algorithms: by label of the learner; prompts: for training; evaluation_prompts: the source of
    held-out draws, may be the same object; held_out: these draws, before the policy skips any;
    accuracy: which reward is the accuracy.
    """

    loaded: ResolvedConfig
    players: Players
    algorithms: Mapping[str, Algorithm]
    prompts: Prompts
    evaluation_prompts: Prompts
    held_out: Sequence[Group]
    rewards: Scorer
    watched: Scorer | None
    accuracy: Accuracy
    notes: list[str] = field(default_factory=list)

    @property
    def config(self) -> RunConfig:
        return self.loaded.config

    def plugin(self, label: str, section: str = "policy") -> Plugin:
        """What a section of a learner names."""
        return self.loaded.plugins[*self.config.learners[label].path, section]

    def load_rewards(self) -> None:
        """Load the models of rewards. Raises UserError if that fails."""
        for rewards in filter(None, (self.rewards, self.watched)):
            rewards.load()

    def close(self) -> None:
        """End the processes and threads in which rewards are called."""
        for rewards in filter(None, (self.rewards, self.watched)):
            rewards.close()

    def rows(self) -> Iterator[Row]:
        """The rows of all sources as episodes open with them, for checks; of an endless source the
        first ones."""
        started = time.monotonic()
        for prompts in self._sources:
            for number, row in enumerate(islice(prompts.rows(), checked_rows(prompts.source))):
                opening = self.players.opening(row)
                yield PlacedRow(opening, row.place)
                if time.monotonic() - started > SECONDS_OF_CHECKING:
                    self.notes.append(
                        f"prompts take long to read: only the first {number + 1:,} of "
                        f"{len(prompts.source):,} were checked before the run"
                    )
                    return

    def check_policies(self, policies: "Mapping[str, Policy | type[Policy]]") -> None:
        """Raise UserError if algorithms or rewards need what policies do not provide.

        policies: by label of the learner.
        """
        for label, policy in policies.items():
            learning = self.config.learners[label]
            if isinstance(policy, type) and not issubclass(policy, Policy):
                problem = f"expected a groupwise.Policy, found the class {policy.__name__}"
                raise UserError(self.loaded.origin.message((*learning.path, "policy"), problem))
            if not isinstance(policy, type | Policy):
                return  # a function that builds a policy: checked when it is built
            if learning.teacher is not None:
                try:
                    self.algorithms[label].take_teacher(policy.provides)
                except UserError as error:
                    path = (*learning.path, "teacher")
                    raise UserError(self.loaded.origin.message(path, str(error))) from error
            self._check_algorithm(self.algorithms[label], learning, policy)
            self._note_default(learning, policy)
            if unknown := sorted(policy.shown - policy.facts - policy.optional_facts):
                raise UserError(
                    f"policy {learning.policy.name!r}: {unknown[0]!r} in its `shown` is not among "
                    f"its facts"
                )
        self._check_columns(facts_of(self.players, policies, self.named))

    def _check_columns(self, facts: Sequence[str]) -> None:
        """Raise UserError if a reward needs a column that neither its rows nor facts have."""
        for prompts in self._sources:
            first = prompts.source[0]
            columns = {name: None for name in first if name != "prompt"}
            for path, reward in self.measures.items():
                if not reward.judges(first):
                    continue
                try:
                    reward.check_columns(columns, facts)
                except MissingColumnError as error:
                    at = (*path, error.option) if error.option else path
                    of = f"{prompts.name}: " if len(self._sources) > 1 else ""
                    raise UserError(self.loaded.origin.message(at, f"{of}{error}")) from error

    def check_tools(self, label: str, policy: type[Policy], settings: Any) -> None:
        """Raise UserError if the environment shows tools to a policy that cannot call them."""
        row = {k: v for k, v in self.prompts.source[0].items() if k != "tools"}
        if label in self.players.receivers and self.players.opening(row).get("tools"):
            policy.examine_tools(settings)

    @property
    def _sources(self) -> Sequence[Prompts]:
        """The prompts of training and, where they are others, of evaluations, by their sources."""
        both = [self.prompts, self.evaluation_prompts]
        return [each for p in (both[:1] if both[0] is both[1] else both) for each in p.each]

    @property
    def measures(self) -> Mapping[KeyPath, Reward]:
        """All rewards, trained on or watched, by the path of their section."""
        watched = self.watched.rewards if self.watched else ()
        return {
            (key, number): reward
            for key, rewards in (("rewards", self.rewards.rewards), ("watch", watched))
            for number, reward in enumerate(rewards)
        }

    @property
    def named(self) -> frozenset[str]:
        """Names in the signatures of rewards; `**columns` does not request optional facts."""
        return frozenset[str]().union(*(reward.parameters[0] for reward in self.measures.values()))

    def _note_default(self, learning: LearnerSettings, policy: "Policy | type[Policy]") -> None:
        """A note where the default algorithm is used with a policy that others are made for."""
        name, config = learning.algorithm.name, self.config
        chosen = "algorithm" in config.model_fields_set or config.players
        if chosen or not policy.algorithms or name in policy.algorithms:
            return
        note = (
            f"no algorithm is set, so it is {name}, whose settings are for tokens; made for policy "
            f"{learning.policy.name!r}: {', '.join(policy.algorithms)}"
        )
        if note not in self.notes:  # policies are checked before and after they are loaded
            self.notes.append(note)

    def _check_algorithm(
        self, algorithm: Algorithm, learning: LearnerSettings, policy: "Policy | type[Policy]"
    ) -> None:
        name = learning.algorithm.name
        for tensor in sorted(algorithm.target_inputs - {OBSERVATIONS}):
            kind, _, output = tensor.partition("_")
            if kind != "old" and (kind != "reference" or output not in algorithm.reference):
                raise UserError(
                    f"algorithm {name!r}: expected in `target_inputs` old_NAME, or reference_NAME "
                    f"with a name in `reference`, found {tensor!r}"
                )
        missing = algorithm.outputs - policy.provides
        if missing:
            advice = " or ".join(_providers(algorithm.outputs))
            raise UserError(
                f"algorithm {name!r} needs {', '.join(sorted(missing))}, which policy "
                f"{learning.policy.name!r} does not provide{advice and f'; take policy: {advice}'}"
            )
        size = learning.train.group_size
        if learning.learns and size < algorithm.smallest_group:
            path = () if len(self.players.casts) > 1 else learning.path
            problem = (
                f"algorithm {name!r} compares the completions of a prompt: expected at least "
                f"{algorithm.smallest_group}, found {size}"
            )
            raise UserError(self.loaded.origin.message((*path, "train", "group_size"), problem))
        if self.config.train.ahead and not algorithm.corrects:
            raise UserError(
                f"train.ahead samples with older weights, and algorithm {name!r} has no importance "
                f"weights as configured; leave train.ahead at 0{algorithm.importance_hint}"
            )
        beta = getattr(getattr(algorithm, "config", None), "beta", None)
        if isinstance(beta, Schedule) and beta.steps > self.config.train.steps:
            problem = (
                f"the schedule takes {beta.steps} steps, but the run has only "
                f"{self.config.train.steps}; lower it, or raise train.steps"
            )
            path = (*learning.path, "algorithm", "beta", "steps")
            raise UserError(self.loaded.origin.message(path, problem))
        if learning.train.keep is not None:
            self._check_keep(algorithm, name)
        if len(self.players.casts) > 1 and algorithm.target_inputs:
            inputs = ", ".join(sorted(algorithm.target_inputs))
            raise UserError(
                f"algorithm {name!r} needs {inputs} for its targets, "
                f"which environment {self.config.environment.name!r} does not support: its casts "
                f"share groups, so targets are over all policies together, and each policy "
                f"computes these only for itself"
            )

    def _check_keep(self, algorithm: Algorithm, name: str) -> None:
        """Raise UserError if advantages of a whole group do not fit an update without some of it"""
        problem = None
        rewards = [r for r in self.rewards.rewards if r.constraint is not None or r.weight != 0]
        if algorithm.target_inputs:
            problem = (
                f"algorithm {name!r} needs {', '.join(sorted(algorithm.target_inputs))} of all "
                f"rollouts for its targets, and those that are left out get no pass"
            )
        elif len(rewards) > 1 and not algorithm.ranks_by_total:
            problem = (
                f"algorithm {name!r} does not compare the sum of the {len(rewards)} rewards, by "
                f"which the best and the worst are chosen"
            )
        if problem is not None:
            problem += "; leave train.keep out, or take another algorithm"
            raise UserError(self.loaded.origin.message(("train", "keep"), problem))

    def check_sampler_class(self, label: str, policy: type[Policy]) -> None:
        """Raise UserError if the sampler, given as a class, is for other policies."""
        plugin = self.loaded.plugins.get((*self.config.learners[label].path, "sampler"))
        if plugin is None or not isinstance(plugin.target, type):
            return
        if not issubclass(plugin.target, Sampler):
            problem = f"expected a groupwise.Sampler, found the class {plugin.target.__name__}"
            raise UserError(plugin.message(problem))
        plugin.target.check_policy_class(policy)


def _providers(outputs: frozenset[str]) -> Iterator[str]:
    """The names of registered policies that provide these outputs."""
    for entry in installed().entries:
        if entry.kind == "policies":
            with suppress(UserError):  # its extra is not installed
                if outputs <= target_of(entry).provides:
                    yield entry.name


def facts_of(
    players: Players,
    policies: Mapping[str, "Policy | type[Policy]"],
    named: frozenset[str],
) -> tuple[str, ...]:
    """The facts that rewards receive besides the data set's columns: those that all judged players
    have, and what the environment returns; named: in the signatures of rewards."""
    judged = [policies[label] for label in players.judged]
    facts = [p.facts | (p.optional_facts & (named | p.shown)) for p in judged]
    return (*sorted(frozenset.intersection(*facts)), *players.environment.columns(players.labels))


def checked_rows(source: PromptSource) -> int:
    """How many of a source's rows are checked before a run."""
    return len(source) if len(source) <= SCAN else ENDLESS
