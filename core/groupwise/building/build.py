"""build: from a configuration to its parts, and from these to the trainer, with all weights."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from accelerate import Accelerator

from groupwise.building.epochs import with_steps
from groupwise.building.making import make_part, make_source
from groupwise.building.parts import Parts
from groupwise.building.players import Players
from groupwise.building.policies import (
    build_policies,
    build_teachers,
    check_kinds,
    check_teachers,
    read_attachments,
)
from groupwise.building.rewards import build_rewards
from groupwise.building.weighting import check_weighting, draws_of
from groupwise.config.sections import RunConfig
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.episodes.sampling import Sampling
from groupwise.episodes.threads import Threads, following_load
from groupwise.evaluator.evaluator import Evaluator
from groupwise.experience.accuracy import Accuracy
from groupwise.experience.experience import Experience
from groupwise.experience.replay import Replay
from groupwise.kit import progress
from groupwise.learning.learner import Learner
from groupwise.learning.trainer import Trainer
from groupwise.metrics.clock import Clock
from groupwise.plugins.resolved import ResolvedConfig
from groupwise.policy import Policy
from groupwise.prompts.draws import Prompts
from groupwise.record import Group
from groupwise.sampler import products_in_tf32
from groupwise.scoring.scorer import Scorer


def build_parts(loaded: ResolvedConfig) -> Parts:
    """Build all parts that need no weights. Raises UserError if anything is wrong."""
    config = loaded.config
    environment = make_part(loaded.plugins["environment",])
    players = Players(environment, config)
    players.check(loaded)
    algorithms = {
        label: make_part(loaded.plugins[*learning.path, "algorithm"])
        for label, learning in config.learners.items()
    }
    own, attached = config.evaluation.source, read_attachments(loaded)
    prompts = draws_of(
        config,
        make_source(loaded),
        seed=config.seed,
        fraction=config.prompts.held_out if own is None else 0.0,
        shuffle=config.prompts.shuffle,
        key=config.prompts.key,
        attached=attached,
    )
    loaded = with_steps(loaded, prompts)
    config, players = loaded.config, Players(environment, loaded.config)
    evaluation_prompts = prompts
    if own is not None:
        source = make_part(loaded.plugins["evaluation", "source"])
        key = config.prompts.key if config.prompts.key in source[0] else None
        evaluation_prompts = Prompts(
            source,
            seed=config.seed,
            fraction=1.0,
            shuffle=False,
            key=key,
            attached=attached,
            name="evaluation.source",
        )
    sources = {id(each.source): each.source for each in (prompts, evaluation_prompts)}
    notes = [note for source in sources.values() for note in getattr(source, "notes", ())]
    rewards, watched = build_rewards(loaded, players.judged_size)
    higher = {section.title for section in config.watch if section.better == "higher"}
    accuracy = Accuracy.of(config.evaluation, rewards, [r for r in watched if r.name in higher])
    for algorithm in algorithms.values():
        algorithm.take_accuracy(accuracy.name, accuracy.threshold)
    check_weighting(loaded, algorithms, accuracy)
    held_out = held_out_draws(evaluation_prompts, config)
    return Parts(
        loaded=loaded,
        players=players,
        algorithms=algorithms,
        prompts=prompts,
        evaluation_prompts=evaluation_prompts,
        held_out=held_out,
        rewards=Scorer(rewards),
        watched=Scorer(watched) if watched else None,
        accuracy=accuracy,
        notes=[*([accuracy.note] if accuracy.note else []), *notes],
    )


def held_out_draws(prompts: Prompts, config: RunConfig) -> list[Group]:
    """The held-out draws. Raises UserError if there are fewer than `evaluation.prompts`."""
    section = config.evaluation
    return prompts.evaluation(
        section.count, distinct=section.distinct, strict=section.prompts is not None
    )


@contextmanager
def open_evaluator(parts: Parts, accelerator: Accelerator, threads: Threads) -> Iterator[Evaluator]:
    """The evaluator with the environment, its players and their samplers; closes all at the end."""
    config, players, prompts = parts.config, parts.players, parts.evaluation_prompts
    with ExitStack() as stack:
        stack.enter_context(closing(parts))
        check_kinds(parts)
        with progress.doing("rewards"):
            parts.load_rewards()
        samplings = {
            label: stack.enter_context(_open_sampling(parts, label, policy, accelerator, threads))
            for label, policy in build_policies(parts, accelerator).items()
        }
        sampler = EpisodeSampler(
            players.environment,
            samplings,
            players.sizes,
            deadline=config.environment.turn_deadline,
            at_once=config.environment.episodes,
        )
        stack.enter_context(closing(sampler))
        draws = parts.held_out
        if any(prompts.skips(draw.row) for draw in draws):
            draws = held_out_draws(prompts, config)
        yield Evaluator(
            sampler,
            draws,
            parts.rewards,
            config.evaluation,
            parts.accuracy,
            distinct=len({prompts.question(draw.row) for draw in draws}),
            watched=parts.watched,
            watches={section.title: section for section in config.watch},
        )


@contextmanager
def _open_sampling(
    parts: Parts, label: str, policy: Policy, accelerator: Accelerator, threads: Threads
) -> Iterator[Sampling]:
    learning, sampler = parts.config.learners[label], policy
    process = (accelerator.process_index, accelerator.num_processes)
    if learning.sampler is not None:
        parts.check_sampler_class(label, type(policy))  # before an engine starts
        with progress.doing("the sampler"):
            sampler = make_part(parts.plugin(label, "sampler"), policy)
    with closing(sampler):
        if sampler is not policy:
            type(sampler).check_policy_class(type(policy))
            policy.check_sampler(sampler)
        batch, seed = learning.train.sample_batch, parts.config.seed
        yield Sampling(policy, sampler, seed=seed, batch=batch, process=process, threads=threads)


@contextmanager
def open_trainer(parts: Parts, accelerator: Accelerator) -> Iterator[Trainer]:
    """The trainer with all weights, ready for the first step; closes all parts at the end."""
    settings, clock = parts.config.train, Clock()
    check_teachers(parts)
    with (
        products_in_tf32(settings.tf32, accelerator.device),
        following_load(accelerator.device) as threads,
        open_evaluator(parts, accelerator, threads) as evaluator,
    ):
        sampler, teachers = evaluator.sampler, build_teachers(parts, accelerator)
        replay = Replay(settings.replay, parts.accuracy) if settings.replay else None
        learners = {
            label: Learner(
                sampler.samplings[label].policy,
                parts.algorithms[label],
                learning.train,
                accelerator,
                sampler.samplings[label].sampler,
                weights=sampler.samplings[label].weights,
                teacher=teachers.get(label),
                replay=replay,
            )
            for label, learning in parts.config.learners.items()
            if learning.learns
        }
        experience = Experience(
            sampler,
            parts.prompts,
            parts.rewards,
            parts.accuracy,
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
            experience.close()
