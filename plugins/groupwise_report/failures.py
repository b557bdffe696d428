"""Failures on a run's page: what failed where in training, how often, and why it did first."""

import math
from collections.abc import Iterator

from groupwise_report.document import section, table
from groupwise_report.run_data import RunData
from groupwise_report.wording import brief, display

MOST_OF_A_REASON = 400
ENVIRONMENT = "environment/"
_LATE = "the environment took longer"
"""How the reason of an episode that was too late begins: it is counted as a TimeoutError."""


def failures(run: RunData) -> str:
    """The section; empty for a run in which nothing failed."""
    rows = [(brief(where), count, brief(why, MOST_OF_A_REASON)) for where, count, why in _rows(run)]
    intro = (
        "Failed completions are counted over all training steps; they have no reward and no "
        "gradient, and never count as 0."
    )
    return section("What failed", intro, table("", ("where", "how often", "why, at first"), rows))


def _rows(run: RunData) -> Iterator[tuple[str, str, str]]:
    """Where, how often and why something failed; environments before rewards."""
    known = {name: dict(run.points(f"failed/{name}")) for name in run.names("failed/")}
    reasons = _reasons(run)
    for name, steps in sorted(known.items(), key=lambda own: not own[0].startswith(ENVIRONMENT)):
        if count := math.fsum(steps.values()):
            where, beginnings = _place(name)
            yield where, f"{count:,.0f}", _first(reasons, *beginnings)
    # An environment that failed may have taken several completions along.
    failed = run.points("failed")
    rest = math.fsum(n for step, n in failed if not any(step in own for own in known.values()))
    if rest:
        own = [why for why in reasons if not why.startswith(("reward ", "the environment "))]
        yield "completions", f"{rest:,.0f}", _first(own, "")
    calls, wrong = (
        math.fsum(value for _, value in run.points(f"environment/{name}"))
        for name in ("calls", "call_errors")
    )
    if wrong and calls:
        share = f"{display(wrong / calls, percent=True)} of calls"
        yield "tools", share, "were answered by an error, which the model reads: no episode fails"


def _place(name: str) -> tuple[str, tuple[str, ...]]:
    """Of a metric `failed/NAME`, what failed, and how reasons for it begin."""
    if not name.startswith(ENVIRONMENT):
        return f"reward {name}", (f"reward {name!r} ",)
    error = name.removeprefix(ENVIRONMENT)
    late = (_LATE,) if error == "TimeoutError" else ()
    return f"environment: {error}", (f"the environment raised {error}:", *late)


def _reasons(run: RunData) -> list[str]:
    """Why completions that the run keeps failed, in the order of steps."""
    samples = (*run.training, *(sample for rows in run.samples.values() for sample in rows))
    return [why for sample in samples if isinstance(why := sample.get("failed"), str)]


def _first(reasons: list[str], *beginnings: str) -> str:
    return next((why for why in reasons if why.startswith(beginnings)), "")
