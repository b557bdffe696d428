"""Rewards: what an environment itself gave to an episode."""

from collections.abc import Sequence


def environment_reward(reward: Sequence[float | None]) -> list[float | None]:
    """The environment's own reward: of TRL's `get_reward`, or the sum of an OpenEnv server's.

    reward: the column of that name, which the environment returns; None where it gave none, which
    is not 0: this reward then does not apply.
    """
    return list(reward)
