"""assemble: what a configuration names, made into the parts of a run that fit together."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from groupwise.algorithm import Algorithm
from groupwise.config.kinds import plugin_sections
from groupwise.config.learners import Learning
from groupwise.config.load import LoadedConfig
from groupwise.config.measures import check_labels, check_schedules
from groupwise.config.objects import Objects
from groupwise.config.sections import RunConfig
from groupwise.config.yaml_lines import KeyPath
from groupwise.errors import UserError
from groupwise.plugins.build import check_options, load_target
from groupwise.policy import Policy
from groupwise.prompts.draws import SCAN, Draw, Prompts
from groupwise.prompts.source import PromptSource, Row
from groupwise.rewards import Reward
from groupwise.run.making import make_part
from groupwise.run.measures import measures
from groupwise.run.teachers import check_teachers
from groupwise.run.weighting import check_weighting, draws_of
from groupwise.sampler import Sampler
from groupwise.scoring.scorer import Scorer

ENDLESS = 2_000
"""Rows looked at before a run of a source that has more than `SCAN`: such sources make them."""
SECONDS_OF_LOOKING = 60.0
"""How long they are looked at, at most: some sources take long to make a row."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What needs no weights: built, and checked to fit together.

    algorithms: by label of the learner; prompts: those of training; exam: where held-out draws come
    from, which may be the same; held_out: these draws, if the policy skips none of them.
    """

    loaded: LoadedConfig
    objects: Objects
    algorithms: Mapping[str, Algorithm]
    prompts: Prompts
    exam: Prompts
    held_out: Sequence[Draw]
    rewards: Scorer
    watched: Scorer | None
    notes: list[str] = field(default_factory=list)

    @property
    def config(self) -> RunConfig:
        return self.loaded.config

    def load_rewards(self) -> None:
        """Let rewards that have a model load it. Raises UserError where one cannot be had."""
        for rewards in filter(None, (self.rewards, self.watched)):
            rewards.load()

    def close(self) -> None:
        """End the processes and threads in which rewards are called."""
        for rewards in filter(None, (self.rewards, self.watched)):
            rewards.close()

    def rows(self) -> Iterator[Row]:
        """The rows that may be drawn: of each source all, or of one that is endless the first."""
        sources = [self.prompts] if self.exam is self.prompts else [self.prompts, self.exam]
        started = time.monotonic()
        for prompts in sources:
            for number, row in enumerate(islice(prompts.rows(), looked_at(prompts.source))):
                yield row
                if time.monotonic() - started > SECONDS_OF_LOOKING:
                    self.notes.append(
                        f"prompts take long to read: of {len(prompts.source):,} the first "
                        f"{number + 1:,} were looked at before the run"
                    )
                    return

    def check_policies(self, policies: "Mapping[str, Policy | type[Policy]]") -> None:
        """Raise UserError where algorithms or rewards need what policies do not provide.

        policies: by label of the learner.
        """
        for label, policy in policies.items():
            learning = self.config.learners[label]
            if isinstance(policy, type) and not issubclass(policy, Policy):
                problem = f"expected a groupwise.Policy, found the class {policy.__name__}"
                raise UserError(self.loaded.origin.message((*learning.path, "policy"), problem))
            if not isinstance(policy, type | Policy):
                return  # a function that makes a policy: it will be seen when it is made
            self._check_algorithm(self.algorithms[label], learning, policy)
        columns = {name: None for name in self.prompts.source[0] if name != "prompt"}
        facts = facts_of(self.config, policies, self.named)
        for reward in self._measures:
            reward.check_columns(columns, facts)

    @property
    def _measures(self) -> Sequence[Reward]:
        """All rewards, trained on or watched."""
        return [*self.rewards.rewards, *(self.watched.rewards if self.watched else ())]

    @property
    def named(self) -> frozenset[str]:
        """What rewards have in their signatures by name: `**columns` asks for no optional fact."""
        return frozenset[str]().union(*(reward.parameters[0] for reward in self._measures))

    def _check_algorithm(
        self, algorithm: Algorithm, learning: Learning, policy: "Policy | type[Policy]"
    ) -> None:
        name = learning.algorithm.name
        for seen in sorted(algorithm.sees):
            kind, _, answer = seen.partition("_")
            if kind != "old" and (kind != "reference" or answer not in algorithm.reference):
                raise UserError(
                    f"algorithm {name!r} sees {seen!r}: what `targets` can receive is old_NAME, "
                    f"and reference_NAME of the names in `reference`"
                )
        missing = algorithm.answers - policy.provides
        if missing:
            raise UserError(
                f"algorithm {name!r} needs {', '.join(sorted(missing))}, which policy "
                f"{learning.policy.name!r} does not provide"
            )
        size = learning.train.group_size
        if learning.learns and size < algorithm.smallest_group:
            path = () if self.config.pool is not None else learning.path
            problem = (
                f"algorithm {name!r} compares the completions of a prompt: expected at least "
                f"{algorithm.smallest_group}, found {size}"
            )
            raise UserError(self.loaded.origin.message((*path, "train", "group_size"), problem))
        if self.config.train.ahead and not algorithm.corrects:
            raise UserError(
                f"train.ahead samples by older weights, and algorithm {name!r} does not correct "
                f"for them as it is set; leave train.ahead at 0, or (grpo and its kin) set "
                f"algorithm.importance: token"
            )
        if self.config.pool is not None and algorithm.sees:
            raise UserError(
                f"algorithm {name!r} sees {', '.join(sorted(algorithm.sees))}, which only the "
                f"policy itself can answer, and in a pool targets are of all policies together"
            )
        if self.config.chain is not None and algorithm.refills:
            raise UserError(
                f"algorithm {name!r} replaces groups of equal reward, and those of a chain belong "
                f"together; set algorithm.refill: false (of grpo and its kin)"
            )

    def check_sampler_class(self, label: str, policy: type[Policy]) -> None:
        """Raise UserError where the sampler, if it is a class, is for other policies."""
        learning = self.config.learners[label]
        section, path = learning.sampler, (*learning.path, "sampler")
        if section is None:
            return
        target = self.objects.get(path)
        if target is None:
            target = load_target(self.loaded, "samplers", path, section.name)
        if isinstance(target, type) and not issubclass(target, Sampler):
            problem = f"expected a groupwise.Sampler, found the class {target.__name__}"
            raise UserError(self.loaded.origin.message(path, problem))
        if isinstance(target, type):
            policy.check_sampler_class(target)


def facts_of(
    config: RunConfig, policies: Mapping[str, "Policy | type[Policy]"], named: frozenset[str]
) -> tuple[str, ...]:
    """Names of what rewards receive beside the columns of the data set; named: by rewards.

    Of a pool what all its policies state; of a chain what its last one does, and by their labels
    what those before it wrote.
    """
    each = [policy.facts | (policy.optional_facts & named) for policy in policies.values()]
    if config.chain is not None:
        return (*each[-1], *[*policies][:-1])
    return tuple(sorted(frozenset.intersection(*each)))


def looked_at(source: PromptSource) -> int:
    """How many of a source's rows are looked at before a run."""
    return len(source) if len(source) <= SCAN else ENDLESS


def build_parts(loaded: LoadedConfig, objects: Objects) -> Parts:
    """Build all that loads no weights. Raises UserError for whatever is wrong with it."""
    config = loaded.config
    make = partial(make_part, loaded, objects)
    check_labels(loaded)
    check_schedules(loaded)
    algorithms = {
        label: make("algorithms", (*learning.path, "algorithm"), learning.algorithm)
        for label, learning in config.learners.items()
    }
    own = config.evaluation.source
    prompts = draws_of(config)(
        make("prompts", ("prompts",), config.prompts),
        seed=config.seed,
        fraction=config.prompts.held_out if own is None else 0.0,
        shuffle=config.prompts.shuffle,
        key=config.prompts.key,
    )
    exam = prompts
    if own is not None:
        source = make("prompts", ("evaluation", "source"), own)
        key = config.prompts.key if config.prompts.key in source[0] else None
        exam = Prompts(source, seed=config.seed, fraction=1.0, shuffle=False, key=key)
    rewards = measures(loaded, objects, "rewards", config.rewards)
    watched = measures(loaded, objects, "watch", config.watch)
    check_weighting(loaded, algorithms, rewards[0])
    check_teachers(loaded, rewards, watched)
    held_out = held_out_draws(exam, config)
    return Parts(
        loaded=loaded,
        objects=objects,
        algorithms=algorithms,
        prompts=prompts,
        exam=exam,
        held_out=held_out,
        rewards=Scorer(rewards),
        watched=Scorer(watched) if watched else None,
    )


def held_out_draws(exam: Prompts, config: RunConfig) -> list[Draw]:
    """The held-out draws. Raises UserError where there are fewer than were asked for."""
    section = config.evaluation
    return exam.evaluation(
        section.count, distinct=section.distinct, strict=section.prompts is not None
    )


def check_sections(loaded: LoadedConfig, objects: Objects) -> Mapping[KeyPath, Any]:
    """What every name of the configuration stands for; options are checked, nothing is built."""
    targets = {}
    for kind, path, section in plugin_sections(loaded.config):
        if path not in objects:
            targets[path] = load_target(loaded, kind, path, section.name)
            check_options(loaded, path, targets[path], section.name, section.options)
    return targets
