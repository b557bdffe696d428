"""From outcomes of checks to a reward's values: failed checks raise an error or count as wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan

from groupwise.rewards import SampleErrors
from groupwise_verifiable.outcome import Outcome, WorkerFailure

SHARE = 0.75
"""The part of the time left that the answers' checks may take: the rest is for gold's, and then for
what has begun."""


def values_of(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Returns the outcomes as values; raises SampleErrors if any of them is a failure.

    The machine's failures are NaN in it, and so never stop a run; others are None.
    """
    failures = {
        index: outcome
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, WorkerFailure)
    }
    values = [
        outcome if not isinstance(outcome, WorkerFailure) else nan if outcome.may_pass else None
        for outcome in outcomes
    ]
    if failures:
        raise SampleErrors(values, {index: each.reason for index, each in failures.items()})
    return values


def without_unchecked(
    outcomes: Sequence[Outcome],
    *,
    on_gold: Callable[[Sequence[int]], Sequence[Outcome]],
    log_metric: Callable[[str, float], None] | None = None,
) -> list[Outcome]:
    """Returns the outcomes with 0.0 for answers that cannot be checked.

    An answer on which the checker fails must neither stop a run nor earn a reward, or the policy
    would learn to write such answers. A failure that the machine may have caused stays, and so does
    one on an answer whose gold the checker fails on, too: then the row, the checker or the machine
    is the reason, not the answer.

    on_gold: runs the same check on the gold answers at some indices. log_metric: gets `unchecked`,
    the share of answers that count as wrong because they could not be checked.
    """
    failed = [
        index
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, WorkerFailure) and not outcome.may_pass
    ]
    results = list(outcomes)
    for index, gold in zip(failed, on_gold(failed) if failed else [], strict=True):
        if isinstance(gold, WorkerFailure):
            broken = "" if gold.may_pass else ": its row or its checker is broken"
            reason = f"{gold.reason} on the gold answer, too{broken}"
            results[index] = replace(gold, reason=reason)
        else:
            results[index] = 0.0
    if log_metric is not None and outcomes:
        unchecked = sum(not isinstance(results[index], WorkerFailure) for index in failed)
        log_metric("unchecked", unchecked / len(outcomes))
    return results
