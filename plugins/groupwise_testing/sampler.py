"""check_sampler: the properties that training requires of a sampler other than the policy."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch import Tensor

from groupwise.policy import Policy
from groupwise.rollouts import Rollouts
from groupwise.sampler import Sampler
from groupwise_testing import compare
from groupwise_testing.draws import Draws, Rows
from groupwise_testing.laws import hold, law

BEFORE = 0.1
"""Seconds that a sampler draws before it follows other weights meanwhile."""


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
    def log_probs(self, rollouts: Rollouts) -> Tensor | None:
        """The policy's log-probs, with its current weights."""
        return self.policy(rollouts, outputs=frozenset({"log_probs"})).log_probs

    def gap(self, rollouts: Rollouts) -> float:
        """The gap of the sampler's log-probs to those with the policy's current weights."""
        ours = self.log_probs(rollouts)
        assert ours is not None
        return self.log_prob_gap(ours, rollouts)


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
    return case.mismatch(case.log_probs(rollouts), rollouts)


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


@law(
    "what is drawn during a `follow` has the log-probs of the weights that drew it",
    hint="`follow`: drop what older weights have computed for what goes on, such as keys and "
    "values; `Turn.spans`: (version, decisions) in order; or leave `follows_in_flight` False",
)
def in_flight(case: Case) -> str | None:
    """Whichever decisions are drawn before, and whichever after."""
    if not case.sampler.follows_in_flight or case.sample().sampler_log_probs is None:
        return None
    case.follow()
    older = case.version
    with ThreadPoolExecutor(1) as thread, compare.nudged(case.policy, size=0.5):
        drawn = thread.submit(case.sample)
        wait([drawn], timeout=BEFORE)
        case.follow()
        rollouts = drawn.result()
        new = case.log_probs(rollouts)
    case.follow()
    old, theirs = case.log_probs(rollouts), rollouts.sampler_log_probs
    assert old is not None
    assert new is not None
    assert theirs is not None
    expected = new.clone()
    for row, places, version in _spans(rollouts):
        if version not in (None, older, older + 1):
            return f"decisions of version {version}, expected {older} or {older + 1}"
        if version == older:
            expected[row, places] = old[row, places]
        elif version is None:
            is_old = (theirs - old)[row, places].abs() < (theirs - new)[row, places].abs()
            expected[row, places] = old[row, places].where(is_old, new[row, places])
    return case.mismatch(expected, rollouts)


def _spans(rollouts: Rollouts) -> Iterator[tuple[int, Tensor, int | None]]:
    """Row, places and version of decisions; None where the sampler says no more than the oldest."""
    for row, turns in enumerate(rollouts.each_turn):
        places = rollouts.mask[row].nonzero().flatten()
        spans = [span for turn in turns for span in turn.spans]
        start = 0
        for version, count in spans:
            yield row, places[start : start + count], version
            start += count
        if not spans:
            yield row, places, None


LAWS = (fits, complete, versions, log_probs, seeds, copies, in_flight)
