"""For plugin authors: checks of the laws that a policy, sampler, algorithm or reward must keep.

Each check raises AssertionError with the law that is broken, the measured numbers, and what to look
at. Put them into the tests of your plugin:

    from groupwise import testing

    def test_laws():
        testing.check_policy(MyPolicy(MyPolicy.Config()), rows)
"""

from groupwise.testing import compare
from groupwise.testing.adapter import check_adapter
from groupwise.testing.algorithm import check_algorithm
from groupwise.testing.environment import check_environment, play_episodes
from groupwise.testing.law import Law, hold, law
from groupwise.testing.policy import check_policy
from groupwise.testing.reward import check_reward
from groupwise.testing.sampler import check_sampler

__all__ = [
    "Law",
    "check_adapter",
    "check_algorithm",
    "check_environment",
    "check_policy",
    "check_reward",
    "check_sampler",
    "compare",
    "hold",
    "law",
    "play_episodes",
]
