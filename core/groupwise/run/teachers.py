"""Teachers: that what a reward learns from is watched, and that the policy never sees it."""

from collections.abc import Sequence

from groupwise.config.load import LoadedConfig
from groupwise.config.sections import RewardSection, WatchSection
from groupwise.errors import UserError, did_you_mean
from groupwise.rewards import Reward


def check_teachers(
    loaded: LoadedConfig, rewards: Sequence[Reward], watched: Sequence[Reward]
) -> None:
    """Raise UserError where a reward's `labels` are not those of a reward that is only watched."""
    config = loaded.config
    for number, reward in enumerate(rewards):
        name = getattr(reward.target, "labels", None)
        problem = None if name is None else _problem(name, config.rewards, config.watch)
        if problem:
            raise UserError(loaded.origin.message(("rewards", number, "labels"), problem))
    for number, reward in enumerate(watched):
        if getattr(reward.target, "labels", None) is not None:
            problem = "only rewards that are trained on learn; list it under `rewards`"
            raise UserError(loaded.origin.message(("watch", number), problem))


def _problem(
    name: str, rewards: Sequence[RewardSection], watch: Sequence[WatchSection]
) -> str | None:
    if name in [section.title for section in rewards]:
        return f"{name!r} is trained on, so the policy sees it; list it under `watch` instead"
    teacher = next((section for section in watch if section.title == name), None)
    if teacher is None:
        names = [section.title for section in watch]
        return (
            f"no watched reward {name!r}{did_you_mean(name, names)}; list the verifier that gives "
            f"the labels under `watch`, where the policy never sees it"
        )
    for section in rewards:
        if (section.name, section.options) == (teacher.name, teacher.options):
            return (
                f"{name!r} is the same verifier as the trained reward {section.title!r}, so the "
                f"policy sees it; leave one of them out"
            )
    return None
