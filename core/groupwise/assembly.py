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
    prompts, draws = _prompts(config, make)
    rewards = Rewards(_measures(make, "rewards", config.rewards))
    watched = _measures(make, "watch", config.watch)
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
    # Of several processes the first alone has callbacks: a tracker is opened once.
    callbacks = [
        make("callbacks", ("callbacks", number), section)
        for number, section in enumerate(config.callbacks)
        if accelerator.is_main_process
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
        made = objects[path]
    else:
        target = load_target(loaded, kind, path, section.name)
        made = build(loaded, path, target, section.name, section.options)
    expected, fits = _EXPECTED[kind]
    if isinstance(made, type):
        problem = f"expected {expected}, found the class {made.__name__} itself: give an instance"
        raise UserError(loaded.origin.message(path, problem))
    if not fits(made):
        problem = f"expected {expected}, found {type(made).__name__}"
        raise UserError(loaded.origin.message(path, problem))
    return made


def _is_source(made: Any) -> bool:
    return hasattr(made, "__len__") and hasattr(made, "__getitem__")


_EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "policies": ("a groupwise.Policy", lambda made: isinstance(made, Policy)),
    "algorithms": ("a groupwise.Algorithm", lambda made: isinstance(made, Algorithm)),
    "callbacks": ("a groupwise.Callback", lambda made: isinstance(made, Callback)),
    "rewards": ("something to call", callable),
    "prompts": ("rows, with len() and [index]", _is_source),
}
"""By kind of plugin: what one is, in words and as a question."""


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
    if key == "prompts":
        return _named_rows((key,), value, objects)
    if (key,) in KINDS:
        return _name_object((key,), value, objects)
    if key == "evaluation" and isinstance(value, Mapping) and "source" in value:
        source = value["source"]
        return {**value, "source": _named_rows((key, "source"), source, objects)}
    return value


def _named_rows(
    path: tuple[str | int, ...], value: Any, objects: dict[tuple[str | int, ...], Any]
) -> Any:
    """Prompts given in Python: rows, or a source."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        objects[path] = value
        return {"name": "rows"}
    return _name_object(path, value, objects)


def _name_object(
    path: tuple[str | int, ...], value: Any, objects: dict[tuple[str | int, ...], Any]
) -> Any:
    if value is None or isinstance(value, str | Mapping):
        return value
    objects[path] = value
    name = getattr(value, "__name__", type(value).__name__)
    unnamed = "watched_lambda" if path[0] == "watch" else "lambda"
    return {"name": name.replace("<lambda>", f"{unnamed}_{path[-1]}")}
