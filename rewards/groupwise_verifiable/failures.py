"""From outcomes of checks to a reward's values: failed checks raise an error or count as wrong."""

from collections.abc import Callable, Sequence

from groupwise.rewards import SampleErrors
from groupwise_verifiable.outcome import Outcome, WorkerFailure


def values_of(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Returns the outcomes as values; raises SampleErrors if any of them is a failure."""
    values = [None if isinstance(outcome, WorkerFailure) else outcome for outcome in outcomes]
    errors = {
        index: outcome.reason
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, WorkerFailure)
    }
    if errors:
        raise SampleErrors(values, errors)
    return values


def without_unchecked(
    outcomes: Sequence[Outcome],
    *,
    on_gold: Callable[[Sequence[int]], Sequence[Outcome]],
    log_metric: Callable[[str, float], None] | None = None,
) -> list[Outcome]:
    """Returns the outcomes with 0.0 for answers that cannot be checked.

    An answer on which the checker fails must neither stop a run nor earn a reward, or the policy
    would learn to write such answers. Where the checker also fails on the gold answer, the failure
    stays: then the row, the checker or a time limit is the reason, not the answer.

    on_gold: runs the same check on the gold answers at some indices. log_metric: gets `unchecked`,
    the share of answers that count as wrong because they could not be checked.
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
