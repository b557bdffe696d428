"""Teaching: weighted prompts and replay in a run, and what both must find in the rest of it."""

from collections.abc import Callable, Mapping
from functools import partial

from groupwise.algorithm import Algorithm
from groupwise.config.load import LoadedConfig
from groupwise.config.sections import RunConfig
from groupwise.config.yaml_lines import KeyPath
from groupwise.errors import UserError
from groupwise.prompts.draws import Prompts
from groupwise.prompts.weighted import Weighted
from groupwise.rewards import Reward
from groupwise.training.judge import Judge


def draws_of(config: RunConfig) -> Callable[..., Prompts]:
    """What makes the prompts of a run: drawn alike, or weighted by success."""
    weighting = config.prompts.weighting
    if weighting is None:
        return Prompts
    return partial(
        Weighted,
        explore=weighting.explore,
        half_life=weighting.half_life * config.train.groups_per_step,
        size=weighting.size,
    )


def check_teaching(
    loaded: LoadedConfig, algorithms: Mapping[str, Algorithm], first: Reward
) -> None:
    """Raise UserError where weighted prompts or replay do not fit the rewards or the algorithm.

    algorithms: by label of the learner; first: of the rewards that are trained on.
    """
    config, message = loaded.config, loaded.origin.message
    wanted: dict[KeyPath, bool] = {
        ("prompts", "weighting"): config.prompts.weighting is not None,
        ("train", "replay"): config.train.replay is not None,
    }
    for path in (path for path, is_set in wanted.items() if is_set):
        judge = Judge(config.evaluation, first)
        if judge.measures:
            problem = (
                f"needs to know which completions are right, and reward {first.name!r} measures; "
                f"name one that tells right from wrong by evaluation.accuracy, or set "
                f"evaluation.threshold"
            )
            raise UserError(message(path, problem))
        if judge.name not in [section.title for section in config.rewards]:
            problem = (
                f"needs to know which completions are right, and evaluation.accuracy names "
                f"{judge.name!r}, which is watched and not measured in training; list it among "
                f"`rewards`, with weight: 0 if nothing is to be learned from it"
            )
            raise UserError(message(path, problem))
    if wanted["train", "replay"]:
        (algorithm,) = algorithms.values()  # several learners are refused before
        _check_replay(loaded, algorithm)


def _check_replay(loaded: LoadedConfig, algorithm: Algorithm) -> None:
    path = ("train", "replay")
    if not algorithm.corrects:
        problem = (
            f"learns from completions of older weights, and algorithm "
            f"{loaded.config.algorithm.name!r} does not correct for them as it is set; leave it "
            f"out, or (grpo and its kin) set algorithm.importance: token"
        )
        raise UserError(loaded.origin.message(path, problem))
    if algorithm.refills:
        problem = (
            "fills the groups without any right completion that algorithm.refill replaces by those "
            "of other prompts; leave it out, or set algorithm.refill: false"
        )
        raise UserError(loaded.origin.message(path, problem))
