"""Evaluation: the metrics and completions on held-out prompts, and the alarms they raise."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Sample = Mapping[str, Any]
"""An evaluated completion, with its prompt, its rewards and whether it is right."""
BEYOND_NOISE = 2.0
"""How many standard errors a change must exceed to count."""


@dataclass(frozen=True)
class Change:
    """The mean of paired differences and its standard error; NaN where it cannot be computed."""

    mean: float
    error: float

    def rose(self, margin: float = 0.0) -> bool:
        """mean > margin + 2 standard errors; False where the error is NaN."""
        return self.mean > margin + BEYOND_NOISE * self.error

    def fell(self, margin: float = 0.0) -> bool:
        return Change(-self.mean, self.error).rose(margin)

    def __str__(self) -> str:
        return f"{'rose' if self.mean > 0 else 'fell'} by {abs(self.mean):.3g} ± {self.error:.2g}"


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """How the trained reward and one watched reward changed since the first evaluation."""

    name: str
    trained: Change
    watched: Change

    def __str__(self) -> str:
        return (
            f"alarm: since the first evaluation the trained reward {self.trained} while the "
            f"watched {self.name!r} {self.watched} (± one standard error): "
            f"is the reward being gamed?"
        )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


@dataclass(frozen=True)
class Evaluation:
    """Metrics by name, a record of every evaluated completion, and alarms.

    alarms: by watched reward, None where nothing is wrong; empty for the first evaluation.
    """

    metrics: Mapping[str, float]
    samples: Sequence[Sample]
    alarms: Mapping[str, Alarm | None] = field(default_factory=dict)

    @property
    def logged(self) -> dict[str, float]:
        """This evaluation's metrics and alarms, as a line of metrics.jsonl has them."""
        return {f"evaluation/{name}": value for name, value in self.metrics.items()} | {
            f"alarm/{name}": float(alarm is not None) for name, alarm in self.alarms.items()
        }
