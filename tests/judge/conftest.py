"""A stand-in judge for the tests, and scoring by it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from tests.judge.stand_in import Reply, Request, StandIn

from groupwise.rewards import Reward, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Request], Reply | str]], StandIn]]:
    """Starts a stand-in for a judge, a function from requests to replies."""
    with ExitStack() as stack:
        yield lambda judge: stack.enter_context(StandIn(judge))


@pytest.fixture
def score() -> Callable[..., Scores]:
    """Scores completions by a reward, as a run does. `on_error` is the default, stop."""

    def score(
        function: Any,
        completions: Sequence[Any],
        *,
        group_size: int = 1,
        prompt: Any = "a question",
        rows: Sequence[dict[str, Any]] | None = None,
        **how: Any,
    ) -> Scores:
        count = len(completions)
        rollouts = Rollouts(
            prompts=rows or [{"prompt": prompt}] * count,
            completions=list(completions),
            groups=torch.arange(count) // group_size,
            mask=torch.ones(count, 1, dtype=torch.bool),
            truncated=torch.zeros(count, dtype=torch.bool),
        )
        scorer = Scorer([Reward(name="judge", function=function)])
        try:
            scorer.load()
            return scorer.finish([scorer.start(rollouts, **how)])
        finally:
            scorer.close()

    return score


def metric(scores: Scores, name: str) -> float:
    """The mean of a metric over completions."""
    total, count = scores.metrics[f"judge/{name}"]
    return total / count
