"""Evaluation: the metrics and completions on held-out prompts, and the alarms they raise."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist
from typing import Any, Literal

from groupwise.kit.copies import copied
from groupwise.kit.metric_names import Family

Sample = Mapping[str, Any]
"""An evaluated completion, with its prompt, its rewards and whether it is right."""
BEYOND_NOISE = 2.0
"""How many standard errors a change must exceed to count: by noise 2.3% do."""


Better = Literal["higher", "lower", "same"]
"""Which change of a watched value is for the better; same: none is."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is measured of every evaluated completion of some classes, outside of rewards."""

    of: tuple[str, ...]
    """Names of the classes, with their modules; a class that inherits from one is meant, too."""
    measure: Callable[[Any], float | None]
    """Called with a completion, in CPU memory; None: it does not apply. Cheap, and without a model,
    since it is called in every run. An exception is noted, and stops nothing."""
    better: Better = "same"
    tolerance: float = 0.0
    """How much the mean may worsen without an alarm."""


def beyond_noise(tests: int = 1) -> float:
    """The standard errors that a change must exceed if it is one of several that are tested.

    z with 1 - Phi(z) = (1 - Phi(2)) / tests, so that the chance that any of them exceeds it by
    noise is at most 2.3%: Bonferroni's inequality, as in Dunn, "Multiple comparisons among means",
    Journal of the American Statistical Association 56, 1961.
    """
    return -NormalDist().inv_cdf(NormalDist().cdf(-BEYOND_NOISE) / tests)


def largest_error(prompts: float) -> float:
    """The standard error sqrt(p (1 - p) / n) of a share p of n prompts, for the p where it is
    largest: 1 / (2 sqrt(n))."""
    return 0.5 / math.sqrt(prompts)


@dataclass(frozen=True)
class Change:
    """The mean of paired differences and its standard error; NaN where it cannot be computed."""

    mean: float
    error: float

    def rose(self, margin: float = 0.0, *, tests: int = 1) -> bool:
        """mean > margin + `beyond_noise(tests)` standard errors; False where the error is NaN."""
        return self.mean > margin + beyond_noise(tests) * self.error

    def fell(self, margin: float = 0.0, *, tests: int = 1) -> bool:
        return Change(-self.mean, self.error).rose(margin, tests=tests)

    def __str__(self) -> str:
        return f"{'rose' if self.mean > 0 else 'fell'} by {abs(self.mean):.3g} ± {self.error:.2g}"


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """The trained reward rose since the first evaluation, and a watched one worsened.

    watched: its change since the evaluation at step `since`: 0 for the first one, else that at
        which it was best.
    """

    name: str
    trained: Change
    watched: Change
    since: int = 0

    def __str__(self) -> str:
        best = f" since its best evaluation, at step {self.since}" if self.since else ""
        return (
            f"alarm: since the first evaluation the trained reward {self.trained} while the "
            f"watched {self.name!r} {self.watched}{best} (± one standard error): "
            f"is the reward being gamed?"
        )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


@dataclass(frozen=True)
class Evaluation:
    """Metrics by name, a record of every evaluated completion, and alarms.

    alarms: by watched reward, None where nothing is wrong; empty for the first evaluation.
    seconds: how long it took, None if that was not measured.
    """

    metrics: Mapping[str, float]
    samples: Sequence[Sample]
    alarms: Mapping[str, Alarm | None] = field(default_factory=dict)
    seconds: float | None = field(default=None, compare=False)

    @property
    def copied(self) -> "Evaluation":
        """The same with metrics, samples and alarms of its own, for users' code."""
        own = {name: copied(getattr(self, name)) for name in ("metrics", "samples", "alarms")}
        return replace(self, **own)

    @property
    def logged(self) -> dict[str, float]:
        """This evaluation's metrics, alarms and time, as a line of metrics.jsonl has them."""
        seconds = self.seconds if self.metrics else None
        raised = {name: alarm for name, alarm in self.alarms.items() if alarm is not None}
        return {
            **{f"{Family.EVALUATION}/{name}": value for name, value in self.metrics.items()},
            **{f"{Family.ALARM}/{name}": float(name in raised) for name in self.alarms},
            **{f"{Family.ALARM_SINCE}/{name}": float(raised[name].since) for name in raised},
            **({} if seconds is None else {f"{Family.TIME}/evaluate": seconds}),
        }
