"""check_sampler: the properties that training requires of a sampler other than the policy."""

import math

import torch

from groupwise.policy import Policy
from groupwise.rollouts import Rollouts
from groupwise.sampler import Sampler
from groupwise.testing import compare
from groupwise.testing.draws import Draws, Rows
from groupwise.testing.law import hold, law


def check_sampler(sampler: Sampler, policy: Policy, rows: Rows, *, group_size: int = 4) -> None:
    """Check a sampler for a policy. Raises AssertionError, which names the law that is broken.

    The check calls `follow` with versions 1, 2, ..., and does not call `close`. It changes the
    policy's weights, and restores them.
    """
    hold(type(sampler).__name__, LAWS, Case(sampler, policy, rows, group_size))


class Case(Draws):
    """A sampler, its policy and rows; version: the last one followed."""

    def __init__(self, sampler: Sampler, policy: Policy, rows: Rows, size: int) -> None:
        super().__init__(sampler, rows, size)
        self.policy, self.version = policy, 0

    def follow(self) -> None:
        """Make the sampler follow the policy's current weights, as the next version."""
        self.version += 1
        self.sampler.follow(self.policy, "policy", self.version)

    @torch.no_grad()
    def gap(self, rollouts: Rollouts) -> float:
        """Mean |policy - sampler| of log-probs; the largest if the sampler is exact."""
        ours = self.policy(rollouts, outputs=frozenset({"log_probs"})).log_probs
        assert ours is not None
        assert rollouts.sampler_log_probs is not None
        pair = (ours, rollouts.sampler_log_probs)
        a, b = (compare.at_decisions(values, rollouts.mask).double() for values in pair)
        difference = (a - b).abs().nan_to_num(nan=math.inf)
        return float(difference.max() if self.sampler.exact else difference.mean())


@law(
    "the sampler fits the policy",
    hint="`policy_class`, `requires`, and what the policy's `check_sampler` refuses",
)
def fits(case: Case) -> str | None:
    type(case.sampler).check_policy_class(type(case.policy))
    case.policy.check_sampler(case.sampler)
    return None


@law(
    "`sample` returns `group_size` rollouts per row, in order",
    hint="`sample`: `group_size` rollouts per row, adjacent and in order; `groups` 0, 1, ...; a "
    "`trajectory` that the policy's `forward` can read",
)
def complete(case: Case) -> str | None:
    case.follow()
    rollouts = case.sample()
    with torch.no_grad():
        case.policy(rollouts)
    return case.misplaced(rollouts)


@law(
    "`versions` are those that `follow` received",
    hint="`Rollouts.versions`: for each rollout, the `version` that `follow` was called with",
)
def versions(case: Case) -> str | None:
    if case.sampler is case.policy:
        return None
    for _ in range(2):
        case.follow()
        received = case.sample().versions
        if received is None:
            return f"versions are None, expected {case.version} for each rollout"
        if set(received.tolist()) != {case.version}:
            return f"versions are {sorted(set(received.tolist()))}, expected {case.version}"
    return None


@law(
    "the sampler's log-probs are the policy's",
    hint="the sampler's log-probs: temperature, filters such as top-p, positions by `mask`; and "
    "whether `exact` is right",
)
def log_probs(case: Case) -> str | None:
    case.follow()
    rollouts = case.sample()
    if rollouts.sampler_log_probs is None:
        missing = case.sampler.exact and "log_probs" in case.policy.provides
        return "`exact` is True, and there are no log-probs" if missing else None
    gap = case.gap(rollouts)
    if gap > case.limit:
        kind = "largest" if case.sampler.exact else "mean"
        return (
            f"the {kind} gap to the policy's log-probs is {gap:.3g} nats, at most "
            f"{case.limit:g} is allowed"
        )
    return None


@law("a sample depends on its seed alone", hint="one generator per seed; or set `seeded = False`")
def seeds(case: Case) -> str | None:
    if not case.sampler.seeded:
        return None
    case.follow()
    return case.difference_alone(case.sample())


@law(
    "the sampler draws with the weights of the last `follow`",
    hint="`follow`: copy the weights at that moment, so that later changes have no effect; drop "
    "anything computed with older ones",
)
def copies(case: Case) -> str | None:
    if case.sampler is case.policy or case.sample().sampler_log_probs is None:
        return None
    case.follow()
    with compare.nudged(case.policy, size=0.5):
        before_follow = case.sample()
        case.follow()
        new = case.gap(case.sample())
    case.follow()
    old = case.gap(before_follow)
    if old > case.limit:
        return (
            f"after the policy's weights had changed, and before `follow` was called again, it did "
            f"not draw with the weights that it had followed: the gap to these is {old:.3g} nats, "
            f"at most {case.limit:g} is allowed"
        )
    if new > case.limit:
        return (
            f"after `follow` with new weights it drew with others: the gap to the new ones is "
            f"{new:.3g} nats, at most {case.limit:g} is allowed"
        )
    return None


LAWS = (fits, complete, versions, log_probs, seeds, copies)
