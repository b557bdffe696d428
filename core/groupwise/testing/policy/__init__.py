"""check_policy: what the core, and every algorithm, builds on in a policy."""

from collections.abc import Callable
from pathlib import Path

from groupwise.policy import Policy
from groupwise.testing.draws import Rows
from groupwise.testing.law import hold
from groupwise.testing.policy import answers, cutting, sampling, weights
from groupwise.testing.policy.case import Case

LAWS = (*sampling.LAWS, *answers.LAWS, *cutting.LAWS, *weights.LAWS)


def check_policy(
    policy: Policy,
    rows: Rows,
    *,
    group_size: int = 4,
    load: Callable[[Path], Policy] | None = None,
) -> None:
    """Check a policy on some rows. Raises AssertionError, which names the law that is broken.

    The policy's weights are changed on the way, and are the same afterwards.

    rows: two or more, of different lengths where there are lengths; best such that some rollouts
        end early, as what is not sampled cannot be checked.
    load: makes a policy of what `save_pretrained` wrote, where that is not the default.
    """
    hold(type(policy).__name__, LAWS, Case(policy, rows, group_size, load))
