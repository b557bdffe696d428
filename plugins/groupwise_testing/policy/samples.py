"""Laws of a policy's sampling."""

from itertools import product

import torch

from groupwise_testing import compare
from groupwise_testing.laws import law
from groupwise_testing.policy.case import Case


@law(
    "`sample` returns `group_size` rollouts per row, in order",
    hint="`sample`: `group_size` rollouts per row, adjacent and in order; `groups` 0, 1, ...; all "
    "`facts`; no more decisions than `max_decisions`",
)
def complete(case: Case) -> str | None:
    policy, rollouts = case.policy, case.rollouts
    policy.check_prompts(case.rows)
    wrong = case.misplaced(rollouts)
    if wrong is not None:
        return wrong
    if bool((rollouts.lengths == 0).all()):
        return "no rollout has a decision"
    if policy.max_decisions is not None and int(rollouts.lengths.max()) > policy.max_decisions:
        most = int(rollouts.lengths.max())
        return f"a rollout has {most} decisions, and `max_decisions` is {policy.max_decisions}"
    missing = policy.facts - set(rollouts.facts)
    return f"facts lack {sorted(missing)}" if missing else None


@law(
    "failed rollouts have finite trajectories",
    hint="`sample`: where it sets `failures`, replace what is not finite (`torch.nan_to_num`): the "
    "rollout may be used for a pass whose gradient is multiplied by 0, and 0 x NaN is NaN",
)
def finite(case: Case) -> str | None:
    rollouts = case.rollouts
    rows = rollouts.failed.nonzero().flatten().tolist()
    for (name, column), row in product(rollouts.trajectory.items(), rows):
        if not bool(torch.as_tensor(column[row]).isfinite().all()):
            return f"trajectory[{name!r}] of rollout {row}, which failed, is not finite"
    return None


@law(
    "optional facts are returned on request",
    hint="`sample`: return the `optional_facts` that `prepare` received",
)
def on_request(case: Case) -> str | None:
    policy = case.policy
    if not policy.optional_facts:
        return None
    policy.prepare(outputs=policy.provides, facts=policy.optional_facts)
    try:
        missing = policy.optional_facts - set(case.sample().facts)
    finally:
        policy.prepare(outputs=policy.provides, facts=frozenset())
    return f"facts lack {sorted(missing)}" if missing else None


@law(
    "a sample depends on its seed alone",
    hint="use one generator per rollout, seeded by its seed alone; draw nothing for a whole batch, "
    "and nothing that depends on the width of a batch",
)
def seeds(case: Case) -> str | None:
    return case.difference_alone(case.rollouts)


@law("other seeds give other samples", hint="whether `seeds` are used")
def other_seeds(case: Case) -> str | None:
    other = case.sample(first=10_000)
    same = map(compare.completions_gap, case.rollouts.completions, other.completions)
    if all(gap == 0 for gap in same):
        return f"{len(other)} rollouts are the same with other seeds"
    return None


@law(
    "sampling does not use torch's global generator",
    hint="draws without `generator=`, dropout, and modules that are initialised while sampling",
)
def global_generator(case: Case) -> str | None:
    before = torch.get_rng_state()
    case.sample()
    same = torch.equal(before, torch.get_rng_state())
    return None if same else "sampling has drawn from torch's global generator"


@law("greedy samples do not depend on seeds", hint="purpose == 'greedy'; or set `greedy = False`")
def greedy(case: Case) -> str | None:
    if not case.policy.greedy:
        return None
    one, other = (case.sample(first=first, purpose="greedy") for first in (0, 10_000))
    gap, what = compare.rollouts_gap(one, other)
    return f"two seeds differ in {what} by {gap:.2g}" if gap > case.limit else None


LAWS = (complete, finite, on_request, seeds, other_seeds, global_generator, greedy)
