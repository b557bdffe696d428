"""From outcomes of single samples to a reward's values: failures are named, or judged wrong."""

from collections.abc import Callable, Sequence

from groupwise.rewards import SampleErrors
from groupwise_verifiable.workers import WorkerFailure

Outcome = float | WorkerFailure | None


def settled(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Returns the outcomes as values; raises SampleErrors when any of them is a failure."""
    values = [None if isinstance(outcome, WorkerFailure) else outcome for outcome in outcomes]
    errors = {
        index: outcome.reason
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, WorkerFailure)
    }
    if errors:
        raise SampleErrors(values, errors)
    return values


def judged(
    outcomes: Sequence[Outcome],
    *,
    on_gold: Callable[[Sequence[int]], Sequence[Outcome]],
    log_metric: Callable[[str, float], None] | None = None,
) -> list[Outcome]:
    """Returns the outcomes with 0.0 for answers that cannot be checked.

    A policy chooses its answers, and one that its checker chokes on must neither stop a run nor
    earn anything. A checker that fails on the gold answer, too, is broken, or has too little time
    on a busy machine: there the failure stays, for it says nothing of the answer.

    on_gold: the same check of the gold answers at some indices. The share of answers that are wrong
    because they could not be checked is logged as `unchecked`.
    """
    failed = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, WorkerFailure)]
    results = list(outcomes)
    for index, gold in zip(failed, on_gold(failed) if failed else [], strict=True):
        if isinstance(gold, WorkerFailure):
            reason = f"{gold.reason} on the gold answer, too: its row or its checker is broken"
            results[index] = WorkerFailure(gold.kind, reason)
        else:
            results[index] = 0.0
    if log_metric is not None and outcomes:
        unchecked = sum(not isinstance(results[index], WorkerFailure) for index in failed)
        log_metric("unchecked", unchecked / len(outcomes))
    return results
