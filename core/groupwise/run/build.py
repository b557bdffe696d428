"""build: the parts of a run and their weights, made into the trainer of it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from groupwise import processes
from groupwise.callback import Callback
from groupwise.errors import UserError
from groupwise.plugins.build import check_options, load_target
from groupwise.policy import Policy
from groupwise.run.parts import Parts, held_out_draws, make_part
from groupwise.run.trainer import Trainer
from groupwise.training.alarm import Watch
from groupwise.training.clock import Clock
from groupwise.training.evaluator import Evaluator
from groupwise.training.experience import Ahead, Experience
from groupwise.training.learner import Learner
from groupwise.training.sampling import Sampling


def build_policy(parts: Parts, accelerator: Accelerator) -> Policy:
    """The policy with its weights, on this process's device, its prompts looked at."""
    config = parts.config
    parts.algorithm.check(_policy_settings(parts))
    # Initialisation (of adapters, say) is the only thing that draws from the global generators.
    set_seed(config.seed)
    policy: Policy = make_part(parts.loaded, parts.objects, "policies", ("policy",), config.policy)
    parts.check_policy(policy)
    policy.needed = parts.algorithm.answers
    policy.requested = parts.requested_facts(policy)
    if config.train.shard:
        policy.shard(processes.mesh(accelerator))
    if policy.mesh is not None and policy.scale_loss:
        raise UserError(
            "train.shard: gradients in float16 have a scale that sharded ones would not agree on; "
            "set policy.precision to float32 or bf16"
        )
    policy.place(accelerator.device)
    policy.check_prompts(parts.rows())
    for prompts in (parts.prompts, parts.exam):
        prompts.skips = policy.skips
    return policy


def _policy_settings(parts: Parts) -> Any:
    """The policy's `Config`; that of one given in Python where it has such, else None."""
    if ("policy",) in parts.objects:
        return getattr(parts.objects["policy",], "config", None)
    loaded, section = parts.loaded, parts.config.policy
    target = load_target(loaded, "policies", ("policy",), section.name)
    return check_options(loaded, ("policy",), target, section.name, section.options)


@contextmanager
def open_sampling(parts: Parts, policy: Policy, accelerator: Accelerator) -> Iterator[Sampling]:
    """Who draws: the sampler that the configuration names, or the policy itself; closed at last."""
    config, path, sampler = parts.config, ("sampler",), policy
    process = (accelerator.process_index, accelerator.num_processes)
    if config.sampler is not None:
        parts.check_sampler_class(type(policy))  # before an engine starts
        sampler = make_part(parts.loaded, parts.objects, "samplers", path, config.sampler, policy)
    with closing(sampler):
        if sampler is not policy:
            policy.check_sampler_class(type(sampler))
            policy.check_sampler(sampler)
        batch = config.train.sample_batch
        yield Sampling(policy, sampler, seed=config.seed, batch=batch, process=process)


def build_evaluator(parts: Parts, sampling: Sampling) -> Evaluator:
    config, draws = parts.config, parts.held_out
    if any(parts.exam.skips(draw.row) for draw in draws):
        draws = held_out_draws(parts.exam, config)
    return Evaluator(
        sampling,
        draws,
        parts.rewards,
        config.evaluation,
        distinct=len({parts.exam.question(draw.row) for draw in draws}),
        watched=parts.watched,
        watches={
            section.title: Watch(better=section.better, tolerance=section.tolerance)
            for section in config.watch
        },
    )


@contextmanager
def open_trainer(parts: Parts, accelerator: Accelerator) -> Iterator[Trainer]:
    """Everything with its weights, ready for the first step; in the end nothing is in flight."""
    parts.load_rewards()
    policy, settings, clock = build_policy(parts, accelerator), parts.config.train, Clock()
    with open_sampling(parts, policy, accelerator) as sampling:
        evaluator = build_evaluator(parts, sampling)
        learner = Learner(policy, parts.algorithm, settings, accelerator, sampling.sampler)
        experience = (Ahead if settings.ahead else Experience)(
            sampling,
            parts.prompts,
            parts.rewards,
            evaluator.judge,
            algorithm=parts.algorithm,
            settings=settings,
            accelerator=accelerator,
            clock=clock,
        )
        try:
            yield Trainer(
                config=parts.config,
                experience=experience,
                learner=learner,
                evaluator=evaluator,
                clock=clock,
            )
        finally:
            experience.drop()


def build_callbacks(parts: Parts, accelerator: Accelerator) -> list[Callback]:
    """Of several processes the first alone has callbacks: a tracker is opened once."""
    return [
        make_part(parts.loaded, parts.objects, "callbacks", ("callbacks", number), section)
        for number, section in enumerate(parts.config.callbacks)
        if accelerator.is_main_process
    ]
