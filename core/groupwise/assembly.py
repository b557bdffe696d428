"""assemble: what a configuration names, made into the parts of a run that fit together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from groupwise.alarm import Watch
from groupwise.algorithm import Algorithm
from groupwise.building import build, load_target
from groupwise.callback import Callback
from groupwise.config import LoadedConfig, check_labels
from groupwise.errors import UserError
from groupwise.evaluation import Evaluator
from groupwise.policy import Policy
from groupwise.prompts import Draw, Prompts
from groupwise.rewards import Reward
from groupwise.scoring import Rewards
from groupwise.sections import (
    KINDS,
    KINDS_OF_LISTS,
    PluginSection,
    RewardSection,
    RunConfig,
    WatchSection,
)
from groupwise.trainer import Trainer

Objects = Mapping[tuple[str | int, ...], Any]
"""Python objects given in place of names, by the key path of their section."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything a run is made of, built and checked."""

    policy: Policy
    algorithm: Algorithm
    evaluator: Evaluator
    trainer: Trainer
    callbacks: Sequence[Callback]


def assemble(loaded: LoadedConfig, objects: Objects, accelerator: Accelerator) -> Parts:
    """Build what the configuration names, the cheap things first, and check that they fit."""
    config = loaded.config
    make = partial(_make, loaded, objects)
    algorithm: Algorithm = make("algorithms", ("algorithm",), config.algorithm)
    check_labels(loaded)
    rewards = Rewards(_measures(make, "rewards", config.rewards))
    watched = _measures(make, "watch", config.watch)
    prompts, draws = _prompts(config, make)
    # Initialisation (of adapters, say) is the only thing that draws from the global generators.
    set_seed(config.seed)
    policy: Policy = make("policies", ("policy",), config.policy)
    columns = {name: None for name in prompts.source[0] if name != "prompt"}
    for reward in (*rewards.rewards, *watched):
        reward.check_columns(columns, tuple(policy.facts))
    policy.check_prompts(chain(prompts.rows(), (draw.row for draw in draws)))
    missing = algorithm.needs - policy.provides
    if missing:
        raise UserError(
            f"algorithm {config.algorithm.name!r} needs {', '.join(sorted(missing))}, which policy "
            f"{config.policy.name!r} does not provide"
        )
    algorithm.prepare(policy)
    if algorithm.reference:
        policy.keep("reference")
    evaluator = Evaluator(
        draws,
        rewards,
        config.evaluation,
        seed=config.seed,
        batch=config.train.sample_batch,
        watched=Rewards(watched) if watched else None,
        watches={
            section.title: Watch(better=section.better, tolerance=section.tolerance)
            for section in config.watch
        },
        process=(accelerator.process_index, accelerator.num_processes),
    )
    trainer = Trainer(
        policy=policy,
        algorithm=algorithm,
        rewards=rewards,
        prompts=prompts,
        settings=config.train,
        evaluator=evaluator,
        accelerator=accelerator,
        seed=config.seed,
        evaluate_every=config.evaluation.every,
    )
    callbacks = [
        make("callbacks", ("callbacks", number), section)
        for number, section in enumerate(config.callbacks)
    ]
    return Parts(
        policy=policy,
        algorithm=algorithm,
        evaluator=evaluator,
        trainer=trainer,
        callbacks=callbacks,
    )


def _measures(
    make: Callable[..., Any], key: str, sections: Sequence[RewardSection | WatchSection]
) -> list[Reward]:
    """The rewards of one list of the configuration: those trained on, or those watched."""
    return [
        _reward(section, make("rewards", (key, number), section))
        for number, section in enumerate(sections)
    ]


def _prompts(config: RunConfig, make: Callable[..., Any]) -> tuple[Prompts, list[Draw]]:
    """The training prompts, and the held-out draws: of the same source, or of one of their own."""
    source = make("prompts", ("prompts",), config.prompts)
    asked = config.evaluation
    own = asked.source
    held = config.prompts.held_out if own is None else 0.0
    prompts = Prompts(source, seed=config.seed, fraction=held, shuffle=config.prompts.shuffle)
    evaluated = prompts
    if own is not None:
        separate = make("prompts", ("evaluation", "source"), own)
        evaluated = Prompts(separate, seed=config.seed, fraction=1.0, shuffle=False)
    return prompts, evaluated.evaluation(
        asked.count, distinct=asked.distinct, strict=asked.prompts is not None
    )


def _make(
    loaded: LoadedConfig,
    objects: Objects,
    kind: str,
    path: tuple[str | int, ...],
    section: PluginSection,
) -> Any:
    if path in objects:
        return objects[path]
    target = load_target(loaded, kind, path, section.name)
    return build(loaded, path, target, section.name, section.options)


def _reward(section: RewardSection | WatchSection, function: Callable[..., Any]) -> Reward:
    bound = frozenset(function.keywords) if isinstance(function, partial) else frozenset()
    return Reward(
        name=section.title,
        function=function,
        weight=section.weight if isinstance(section, RewardSection) else 1.0,
        deadline=section.deadline,
        on_error=section.on_error,
        bound=bound,
    )


def set_aside(key: str, value: Any, objects: dict[tuple[str | int, ...], Any]) -> Any:
    """Put Python objects into `objects` and return sections that name them."""
    if key in KINDS_OF_LISTS:
        items = (
            list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        )
        return [_name_object((key, number), item, objects) for number, item in enumerate(items)]
    if key == "prompts" and isinstance(value, Sequence) and not isinstance(value, str):
        objects[(key,)] = value
        return {"name": "rows"}
    if (key,) in KINDS:
        return _name_object((key,), value, objects)
    return value


def _name_object(
    path: tuple[str | int, ...], value: Any, objects: dict[tuple[str | int, ...], Any]
) -> Any:
    if isinstance(value, str | Mapping):
        return value
    objects[path] = value
    name = getattr(value, "__name__", type(value).__name__)
    unnamed = "watched_lambda" if path[0] == "watch" else "lambda"
    return {"name": name.replace("<lambda>", f"{unnamed}_{path[-1]}")}
