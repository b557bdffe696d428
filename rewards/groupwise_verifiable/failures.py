"""From outcomes of single samples to a reward's values, failures named."""

from collections.abc import Sequence

from groupwise.rewards import SampleErrors
from groupwise_verifiable.workers import WorkerFailure


def settled(outcomes: Sequence[float | WorkerFailure | None]) -> list[float | None]:
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
