"""check_sampler: what another sampler than the policy owes it."""

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

    It follows versions 1, 2, ... here, and is not closed. The policy's weights are changed on the
    way, and are the same afterwards.
    """
    hold(type(sampler).__name__, LAWS, Case(sampler, policy, rows, group_size))


class Case(Draws):
    """version: that followed last."""

    def __init__(self, sampler: Sampler, policy: Policy, rows: Rows, size: int) -> None:
        super().__init__(sampler, rows, size)
        self.policy, self.version = policy, 0

    def follow(self) -> None:
        """Have the sampler follow the policy's present weights, as another version."""
        self.version += 1
        self.sampler.follow(self.policy, "policy", self.version)

    @torch.no_grad()
    def gap(self, rollouts: Rollouts) -> float:
        """Mean |policy's - sampler's| log-prob; the largest where the sampler is exact."""
        ours = self.policy(rollouts).log_probs
        assert ours is not None
        assert rollouts.sampler_log_probs is not None
        pair = (ours, rollouts.sampler_log_probs)
        a, b = (compare.at_decisions(values, rollouts.mask).double() for values in pair)
        apart = (a - b).abs().nan_to_num(nan=math.inf)
        return float(apart.max() if self.sampler.exact else apart.mean())


@law(
    "it fits the policy",
    look="`policy_class`, `requires`, and what the policy's `check_sampler` refuses",
)
def fits(case: Case) -> str | None:
    case.policy.check_sampler_class(type(case.sampler))
    case.policy.check_sampler(case.sampler)
    return None


@law(
    "rollouts are what was asked for",
    look="`sample`: `group_size` rollouts a row, adjacent and in order; `groups` 0, 1, ...; a "
    "`trajectory` that the policy's `forward` reads",
)
def asked_for(case: Case) -> str | None:
    case.follow()
    rollouts = case.sample()
    with torch.no_grad():
        case.policy(rollouts)
    return case.misplaced(rollouts)


@law(
    "versions are those followed",
    look="`Rollouts.versions`: the `version` that `follow` was called with, for each rollout",
)
def versions(case: Case) -> str | None:
    if case.sampler is case.policy:
        return None
    for _ in range(2):
        case.follow()
        drew = case.sample().versions
        if drew is None:
            return f"versions are None, expected {case.version} for each rollout"
        if set(drew.tolist()) != {case.version}:
            return f"versions are {sorted(set(drew.tolist()))}, expected {case.version}"
    return None


@law(
    "what it says is what the policy says",
    look="the sampler's log-probs: temperature, filters such as top-p, the placing by `mask`; and "
    "whether `exact` is true of it",
)
def says(case: Case) -> str | None:
    case.follow()
    rollouts = case.sample()
    if rollouts.sampler_log_probs is None:
        return "`exact` is True, and there are no log-probs" if case.sampler.exact else None
    apart = case.gap(rollouts)
    if apart > case.limit:
        kind = "largest" if case.sampler.exact else "mean"
        return (
            f"the {kind} gap to the policy's log-probs is {apart:.3g} nats, at most "
            f"{case.limit:g} is allowed"
        )
    return None


@law("seeds name samples", look="one generator for each seed; or say `seeded = False`")
def seeds(case: Case) -> str | None:
    if not case.sampler.seeded:
        return None
    case.follow()
    return case.apart_alone(case.sample())


@law(
    "a sampler that copies draws with what it was told",
    look="`follow`: a copy of the weights, as they are at that moment; nothing that changes "
    "afterwards, and nothing that was computed with older ones",
)
def copies(case: Case) -> str | None:
    if case.sampler is case.policy or case.sample().sampler_log_probs is None:
        return None
    case.follow()
    with compare.nudged(case.policy, size=0.5):
        untold = case.sample()
        case.follow()
        near = case.gap(case.sample())
    case.follow()
    before = case.gap(untold)
    if before > case.limit:
        return (
            f"after the policy's weights had changed, and before it was told of others, it did not "
            f"draw with those that it followed: the gap to these is {before:.3g} nats, at most "
            f"{case.limit:g} is allowed"
        )
    if near > case.limit:
        return (
            f"told of new weights, it drew with others: the gap to the new ones is {near:.3g} "
            f"nats, at most {case.limit:g} is allowed"
        )
    return None


LAWS = (fits, asked_for, versions, says, seeds, copies)
