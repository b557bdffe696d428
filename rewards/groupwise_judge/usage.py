"""Usage: what the questions of one call took, for the run's metrics."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from groupwise_judge.form import KINDS

MOST_TOKENS = 10**9
"""More than any request or answer has."""


@dataclass
class Usage:
    """Counts of one call of a reward.

    answers: those that were needed; cached: of these, those that had been given before; requests:
    sent, repetitions included; retries: repetitions alone; input_tokens, output_tokens: as the
    server counts them; seconds: the time of all answered requests together; answered: their number;
    unreadable: by kind, answers that do not count.
    """

    answers: int = 0
    cached: int = 0
    requests: int = 0
    retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    answered: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)

    def add_tokens(self, counted: Any) -> None:
        """Add what a server counted for one answer; many count nothing."""
        if isinstance(counted, Mapping):
            self.input_tokens += _count(counted.get("prompt_tokens"))
            self.output_tokens += _count(counted.get("completion_tokens"))

    def log(
        self,
        log_metric: Callable[[str, float], None] | None,
        completions: int,
        *,
        input_price: float,
        output_price: float,
    ) -> None:
        """Log the metrics: means over completions, but for shares of answers (`cache_hits`,
        `unreadable_...`) and seconds of a request (`latency`)."""
        if log_metric is None or not completions:
            return
        cost = (self.input_tokens * input_price + self.output_tokens * output_price) / 1e6
        totals = {
            "requests": self.requests,
            "retries": self.retries,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": cost,
        }
        for name, total in totals.items():
            log_metric(name, total / completions)
        if self.answered:
            log_metric("latency", self.seconds / self.answered)
        if self.answers:
            log_metric("cache_hits", self.cached / self.answers)
            for kind in KINDS:
                log_metric(f"unreadable_{kind}", self.unreadable[kind] / self.answers)


def _count(value: Any) -> int:
    """A number of tokens; 0 for what cannot be one."""
    return value if type(value) is int and 0 < value < MOST_TOKENS else 0
