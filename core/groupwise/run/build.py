"""build: from the parts of a run to its trainer: policies with weights, samplers, learners."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from groupwise import processes
from groupwise.config.learners import LearnerSettings
from groupwise.config.sections import RunConfig
from groupwise.errors import UserError
from groupwise.plugins.build import check_options
from groupwise.plugins.targets import load_target
from groupwise.policy import Policy
from groupwise.run.making import make_part
from groupwise.run.parts import Parts, held_out_draws
from groupwise.run.trainer import Trainer
from groupwise.training.ahead import Ahead
from groupwise.training.clock import Clock
from groupwise.training.episode_sampler import EpisodeSampler
from groupwise.training.evaluator import Evaluator
from groupwise.training.experience import Experience
from groupwise.training.learner import Learner
from groupwise.training.replay import Replay
from groupwise.training.sampling import Sampling
from groupwise.training.threads import Threads, following_load


def build_policies(parts: Parts, accelerator: Accelerator) -> dict[str, Policy]:
    """The policies with their weights on this process's device, by label; checks the prompts."""
    config = parts.config
    policies = {}
    for label, learning in config.learners.items():
        parts.algorithms[label].check(_policy_settings(parts, learning))
        # Only initialisation (of adapters, say) draws from the global generators.
        set_seed(config.seed)
        path = (*learning.path, "policy")
        policies[label] = make_part(parts.loaded, parts.objects, "policies", path, learning.policy)
    parts.check_policies(policies)
    receivers = parts.players.receivers
    for label, policy in policies.items():
        read = parts.named | policy.shown if label in parts.players.judged else frozenset()
        policy.prepare(outputs=parts.algorithms[label].outputs, facts=policy.optional_facts & read)
        _place(policy, config, accelerator)
    for label, policy in policies.items():
        policy.check_prompts(parts.rows() if label in receivers else ())
    for prompts in (parts.prompts, parts.evaluation_prompts):
        prompts.skips = lambda row: any(policies[label].skips(row) for label in receivers)
    return policies


def _place(policy: Policy, config: RunConfig, accelerator: Accelerator) -> None:
    """Shard the policy, if that is set, and move it to its device."""
    if config.train.shard:
        policy.shard(processes.mesh(accelerator))
    if policy.mesh is not None and policy.scale_loss:
        raise UserError(
            "train.shard: gradients in float16 need a loss scale, which sharding does not support; "
            "set policy.precision to float32 or bf16"
        )
    policy.place(accelerator.device)


def _policy_settings(parts: Parts, learning: LearnerSettings) -> Any:
    """The policy's `Config`; for a policy passed in Python its attribute `config`, or None."""
    path = (*learning.path, "policy")
    if path in parts.objects:
        return getattr(parts.objects[path], "config", None)
    return check_options(parts.loaded, path, load_target(parts.loaded, path))


@contextmanager
def open_sampler(
    parts: Parts, policies: Mapping[str, Policy], accelerator: Accelerator, threads: Threads
) -> Iterator[EpisodeSampler]:
    """The environment with its players, each with its sampler or itself; closes all at the end."""
    with ExitStack() as samplers:
        samplings = {
            label: samplers.enter_context(
                _open_sampling(parts, label, policy, accelerator, threads)
            )
            for label, policy in policies.items()
        }
        players = parts.players
        with closing(EpisodeSampler(players.environment, samplings, players.sizes)) as sampler:
            yield sampler


@contextmanager
def _open_sampling(
    parts: Parts, label: str, policy: Policy, accelerator: Accelerator, threads: Threads
) -> Iterator[Sampling]:
    learning, sampler = parts.config.learners[label], policy
    process = (accelerator.process_index, accelerator.num_processes)
    if learning.sampler is not None:
        parts.check_sampler_class(label, type(policy))  # before an engine starts
        path = (*learning.path, "sampler")
        sampler = make_part(parts.loaded, parts.objects, "samplers", path, learning.sampler, policy)
    with closing(sampler):
        if sampler is not policy:
            type(sampler).check_policy_class(type(policy))
            policy.check_sampler(sampler)
        batch, seed = learning.train.sample_batch, parts.config.seed
        yield Sampling(policy, sampler, seed=seed, batch=batch, process=process, threads=threads)


def build_evaluator(parts: Parts, sampler: EpisodeSampler) -> Evaluator:
    config, draws = parts.config, parts.held_out
    if any(parts.evaluation_prompts.skips(draw.row) for draw in draws):
        draws = held_out_draws(parts.evaluation_prompts, config)
    return Evaluator(
        sampler,
        draws,
        parts.rewards,
        config.evaluation,
        distinct=len({parts.evaluation_prompts.question(draw.row) for draw in draws}),
        watched=parts.watched,
        watches={section.title: section for section in config.watch},
    )


@contextmanager
def open_trainer(parts: Parts, accelerator: Accelerator) -> Iterator[Trainer]:
    """The trainer with all weights, ready for the first step; at the end stops sampling ahead."""
    parts.load_rewards()
    policies, settings, clock = build_policies(parts, accelerator), parts.config.train, Clock()
    with (
        following_load(accelerator.device) as threads,
        open_sampler(parts, policies, accelerator, threads) as sampler,
    ):
        evaluator = build_evaluator(parts, sampler)
        replay = Replay(settings.replay, evaluator.judge) if settings.replay else None
        learners = {
            label: Learner(
                policies[label],
                parts.algorithms[label],
                learning.train,
                accelerator,
                sampler.samplings[label].sampler,
                weights=sampler.samplings[label].weights,
                replay=replay,
            )
            for label, learning in parts.config.learners.items()
            if learning.learns
        }
        experience = (Ahead if settings.ahead else Experience)(
            sampler,
            parts.prompts,
            parts.rewards,
            evaluator.judge,
            algorithms={label: parts.algorithms[label] for label in learners},
            settings=settings,
            accelerator=accelerator,
            clock=clock,
        )
        try:
            yield Trainer(
                config=parts.config,
                experience=experience,
                learners=learners,
                evaluator=evaluator,
                clock=clock,
                threads=threads,
            )
        finally:
            experience.drop()
