"""Measures: the rewards of a configuration, those trained on and those watched."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from groupwise.config.load import LoadedConfig
from groupwise.config.measures import RewardSection, WatchSection
from groupwise.config.objects import Objects
from groupwise.errors import UserError
from groupwise.rewards import Reward
from groupwise.run.making import make_part
from groupwise.section import KeyPath


def measures(
    loaded: LoadedConfig,
    objects: Objects,
    key: str,
    sections: Sequence[RewardSection | WatchSection],
) -> list[Reward]:
    """The rewards of one list of the configuration: those trained on, or those watched."""
    return [
        _reward(loaded, objects, (key, number), section) for number, section in enumerate(sections)
    ]


def _reward(
    loaded: LoadedConfig, objects: Objects, path: KeyPath, section: RewardSection | WatchSection
) -> Reward:
    function = make_part(loaded, objects, "rewards", path, section)
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
            bound=frozenset(function.keywords) if isinstance(function, partial) else frozenset(),
            # A worker builds it again by its name, so that models and locks need not be pickled.
            remake=None
            if path in objects
            else partial(make_part, replace(loaded, objects={}), {}, "rewards", path, section),
        )
    except UserError as error:
        raise UserError(loaded.origin.message(path, str(error))) from error
    if section.deadline and section.on_error == "skip" and not (reward.is_async or reward.isolate):
        problem = (
            "on_error: skip needs a reward that can be ended at its deadline, in a process of its "
            "own or as an async function, and this is a plain function: set `isolate: true`, or "
            "leave `deadline` out"
        )
        raise UserError(loaded.origin.message((*path, "deadline"), problem))
    return reward
