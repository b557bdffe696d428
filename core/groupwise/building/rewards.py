"""Rewards: those of a configuration, trained on or watched, built and checked."""

from dataclasses import replace
from functools import partial

from groupwise.building.making import make_part
from groupwise.config.measures import MeasureSection, RewardSection
from groupwise.config.sections import RunConfig
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.section import KeyPath
from groupwise.plugins.plugin import Plugin
from groupwise.plugins.resolved import ResolvedConfig
from groupwise.rewards import Reward


def build_rewards(loaded: ResolvedConfig, size: int) -> tuple[list[Reward], list[Reward]]:
    """The rewards that are trained on, and those that are only watched.

    size: completions of a prompt that are judged in a training step. Raises UserError if one cannot
    be built, learns from no watched reward, or compares completions where there are none to compare
    (`relative`).
    """
    config, column = loaded.config, loaded.config.prompts.label_column
    trained, watched = (
        [_reward(loaded.plugins[key, n], each, column) for n, each in enumerate(sections)]
        for key, sections in (("rewards", config.rewards), ("watch", config.watch))
    )
    for number, reward in enumerate(watched):
        if reward.members.labels is not None:
            problem = "a reward that learns must be trained on; list it under `rewards`"
            raise UserError(loaded.origin.message(("watch", number), problem))
    for number, reward in enumerate(trained):
        path: KeyPath = ("rewards", number)
        labels, relative = reward.members.labels, reward.members.relative
        if labels is not None and (wrong := _problem_of_labels(labels, config)):
            raise UserError(loaded.origin.message((*path, "labels"), wrong))
        if relative and size < 2:
            problem = (
                f"reward {reward.name!r} compares the completions of a prompt (`relative`): "
                f"expected at least 2 in a group, found {size}; set train.group_size"
            )
            raise UserError(loaded.origin.message(path, problem))
        if relative and config.train.replay is not None and reward.weight != 0:
            problem = (
                f"a completion of an earlier group keeps its reward, and reward {reward.name!r} "
                f"compares the completions of a group (`relative`); leave train.replay out, or set "
                f"the weight of this reward to 0"
            )
            raise UserError(loaded.origin.message(("train", "replay"), problem))
    return trained, watched


def _reward(plugin: Plugin, section: MeasureSection, label_column: str) -> Reward:
    function = make_part(plugin)
    trained = section if isinstance(section, RewardSection) else None
    try:
        reward = Reward(
            name=section.title,
            function=function,
            weight=1.0 if trained is None or trained.weight is None else trained.weight,
            constraint=trained.constraint if trained else None,
            deadline=section.deadline or Reward.deadline,
            on_error=section.on_error,
            isolate=section.isolate,
            sources=None if section.sources is None else frozenset(section.sources),
            label_column=label_column,
            bound=frozenset(function.keywords) if isinstance(function, partial) else frozenset(),
            # A worker builds it again by its name, so that models and locks need not be pickled.
            remake=None
            if plugin.passed is not None
            else partial(make_part, replace(plugin, passed_options={})),
        )
    except UserError as error:
        raise UserError(plugin.message(str(error))) from error
    if section.deadline and section.on_error == "skip" and not (reward.is_async or reward.isolate):
        problem = (
            "on_error: skip needs a reward that can be ended at its deadline, in a process of its "
            "own or as an async function, and this is a plain function: set `isolate: true`, or "
            "leave `deadline` out"
        )
        raise UserError(plugin.message(problem, "deadline"))
    return reward


def _problem_of_labels(name: str, config: RunConfig) -> str | None:
    """Why no reward can learn from the labels of this one, or None.

    It must be watched, and the policy must not be trained on it.
    """
    if name in [section.title for section in config.rewards]:
        return (
            f"expected a watched reward; the policy is trained on {name!r}: list it under `watch` "
            f"instead"
        )
    verifier = next((section for section in config.watch if section.title == name), None)
    if verifier is None:
        names = [section.title for section in config.watch]
        return (
            f"no watched reward {name!r}{did_you_mean(name, names)}; list the verifier that gives "
            f"the labels under `watch`, where the policy is not trained on it"
        )
    for section in config.rewards:
        if (section.name, section.options) == (verifier.name, verifier.options):
            return (
                f"{name!r} is the same verifier as the trained reward {section.title!r}, so the "
                f"policy is trained on it; leave one of them out"
            )
    return None
