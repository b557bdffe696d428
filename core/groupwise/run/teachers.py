"""Teachers: check that a reward learns from a watched one, which the policy is not trained on."""

from collections.abc import Sequence

from groupwise.config.load import LoadedConfig
from groupwise.config.measures import RewardSection, WatchSection
from groupwise.errors import UserError, did_you_mean
from groupwise.rewards import Reward


def check_teachers(
    loaded: LoadedConfig, rewards: Sequence[Reward], watched: Sequence[Reward]
) -> None:
    """Raise UserError if a reward's `labels` name no reward that is only watched."""
    config = loaded.config
    for number, reward in enumerate(rewards):
        name = reward.members.labels
        problem = None if name is None else _problem(name, config.rewards, config.watch)
        if problem:
            raise UserError(loaded.origin.message(("rewards", number, "labels"), problem))
    for number, reward in enumerate(watched):
        if reward.members.labels is not None:
            problem = "a reward that learns must be trained on; list it under `rewards`"
            raise UserError(loaded.origin.message(("watch", number), problem))


def _problem(
    name: str, rewards: Sequence[RewardSection], watch: Sequence[WatchSection]
) -> str | None:
    if name in [section.title for section in rewards]:
        return (
            f"expected a watched reward; the policy is trained on {name!r}: list it under `watch` "
            f"instead"
        )
    teacher = next((section for section in watch if section.title == name), None)
    if teacher is None:
        names = [section.title for section in watch]
        return (
            f"no watched reward {name!r}{did_you_mean(name, names)}; list the verifier that gives "
            f"the labels under `watch`, where the policy is not trained on it"
        )
    for section in rewards:
        if (section.name, section.options) == (teacher.name, teacher.options):
            return (
                f"{name!r} is the same verifier as the trained reward {section.title!r}, so the "
                f"policy is trained on it; leave one of them out"
            )
    return None
