"""check_policy: the properties that the core and all algorithms require of a policy."""

from collections.abc import Callable
from pathlib import Path

from groupwise.policy import Policy
from groupwise_testing.draws import Rows
from groupwise_testing.laws import hold
from groupwise_testing.policy import cutting, gradients, outputs, samples, weights
from groupwise_testing.policy.case import Case

LAWS = (*samples.LAWS, *outputs.LAWS, *cutting.LAWS, *gradients.LAWS, *weights.LAWS)


def check_policy(
    policy: Policy,
    rows: Rows,
    *,
    group_size: int = 4,
    load: Callable[[Path], Policy] | None = None,
) -> None:
    """Check a policy on some rows. Raises AssertionError, which names the law that is broken.

    The check changes the policy's weights, and restores them.

    rows: two or more, with prompts of different lengths; preferably such that some rollouts end
        early, since padding is checked only if there is some.
    load: loads a policy from what `save_pretrained` wrote, if that is not the default format.
    """
    hold(type(policy).__name__, LAWS, Case(policy, rows, group_size, load))
