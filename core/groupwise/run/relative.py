"""Relative: rewards that compare the completions of a group, and what they require of a run."""

import math
from collections.abc import Sequence

from groupwise.config.load import LoadedConfig
from groupwise.config.sections import RunConfig
from groupwise.errors import UserError
from groupwise.rewards import Reward


def check_relative(loaded: LoadedConfig, rewards: Sequence[Reward]) -> None:
    """Raise UserError if a trained reward is relative, and there is nothing to compare.

    With replay the completions of a group would be compared with one of another group.
    """
    config = loaded.config
    for number, reward in enumerate(rewards):
        if not reward.members.relative:
            continue
        size, message = _group_size(config), loaded.origin.message
        if size < 2:
            problem = (
                f"reward {reward.name!r} compares the completions of a prompt (`relative`): "
                f"expected at least 2 in a group, found {size}; set train.group_size"
            )
            raise UserError(message(("rewards", number), problem))
        if config.train.replay is not None and reward.weight != 0:
            problem = (
                f"a completion of an earlier group keeps its reward, and reward {reward.name!r} "
                f"compares the completions of a group (`relative`); leave train.replay out, or set "
                f"the weight of this reward to 0"
            )
            raise UserError(message(("train", "replay"), problem))


def _group_size(config: RunConfig) -> int:
    """Completions of a prompt that rewards judge in a training step."""
    sizes = [learning.group_size for learning in config.learners.values()]
    return math.prod(sizes) if config.chain is not None else sum(sizes)
