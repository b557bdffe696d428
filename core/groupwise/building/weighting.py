"""Weighting: weighted prompts and replay in a run, and what both require of other sections."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from groupwise.algorithm import Algorithm
from groupwise.config.load import LoadedConfig
from groupwise.config.sections import RunConfig
from groupwise.experience.accuracy import Accuracy
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath
from groupwise.prompt_source import PromptSource
from groupwise.prompts.draws import Prompts
from groupwise.prompts.mixed import Mixed
from groupwise.prompts.mixture import Mixture
from groupwise.prompts.weighted import WeightedPrompts


def draws_of(config: RunConfig, source: PromptSource, **settings: Any) -> Prompts:
    """The draws of a run's prompts: in order, or weighted by success; of a mixture by shares."""
    make = _draws_of_source(config)
    if isinstance(source, Mixture):
        return Mixed(source, make, **settings)
    return make(source, **settings)


def _draws_of_source(config: RunConfig) -> Callable[..., Prompts]:
    weighting = config.prompts.weighting
    if weighting is None:
        return Prompts
    return partial(
        WeightedPrompts,
        explore=weighting.explore,
        half_life=weighting.half_life * config.train.groups_per_step,
        size=weighting.size,
    )


def check_weighting(
    loaded: LoadedConfig, algorithms: Mapping[str, Algorithm], accuracy: Accuracy
) -> None:
    """Raise UserError if weighted prompts or replay do not fit the rewards or the algorithm.

    algorithms: by label of the learner.
    """
    config, message = loaded.config, loaded.origin.message
    sections: dict[KeyPath, Any] = {
        ("prompts", "weighting"): config.prompts.weighting,
        ("train", "replay"): config.train.replay,
    }
    for path in (path for path, section in sections.items() if section is not None):
        if accuracy.name is None:
            problem = (
                "needs to know which completions are right, and no reward says that it tells right "
                "from wrong: set evaluation.accuracy to one whose 1 means right (with "
                "evaluation.threshold, the least value that does), or give it an attribute "
                "`judges = True`"
            )
            raise UserError(message(path, problem))
        if accuracy.name not in [section.title for section in config.rewards]:
            problem = (
                f"needs to know which completions are right, but the reward that says so, "
                f"{accuracy.name!r}, is only watched and not called in training; list it under "
                f"`rewards`, with weight: 0 if the policy should not be trained on it"
            )
            raise UserError(message(path, problem))
    if config.train.replay is not None:
        (algorithm,) = algorithms.values()  # replay with several learners was refused before
        _check_replay(loaded, algorithm)


def _check_replay(loaded: LoadedConfig, algorithm: Algorithm) -> None:
    path = ("train", "replay")
    if not algorithm.corrects:
        problem = (
            f"learns from completions of older weights, but algorithm "
            f"{loaded.config.algorithm.name!r} has no importance weights as configured; leave it "
            f"out{algorithm.importance_hint}"
        )
        raise UserError(loaded.origin.message(path, problem))
    if algorithm.refills:
        problem = (
            "fills groups without right completions, but algorithm.refill replaces them by groups "
            "of other prompts; leave it out, or set algorithm.refill: false"
        )
        raise UserError(loaded.origin.message(path, problem))
