"""Facts: those of a policy that its evaluations log and show."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.evaluation import Sample
from groupwise.metrics.tally import Tally
from groupwise.policy import Policy
from groupwise.rollouts import Rollouts


def recorded(rollouts: Rollouts, policy: Policy, rows: Sequence[int]) -> list[dict[str, Any]]:
    """For each of these rows what its sample records: by name, `logged` facts and those that are
    `shown`.

    rollouts: with facts in CPU memory.
    """
    logged, shown = (sorted(n & rollouts.facts.keys()) for n in (policy.logged, policy.shown))
    columns = rollouts.facts
    return [
        {
            key: {name: _plain(columns[name][row]) for name in names}
            for key, names in (("logged", logged), ("shown", shown))
            if names
        }
        for row in rows
    ]


def means(samples: Sequence[Sample]) -> dict[str, float]:
    """By name, the mean of each logged fact over all decisions of these samples, as in training."""
    tally = Tally()
    for sample in samples:
        for name, value in sample.get("logged", {}).items():
            if value is not None:  # itself a mean over the decisions of its completion
                tally.mean(name, value * sample["length"], sample["length"])
    return {name: mean for name, mean in tally.result().items() if not math.isnan(mean)}


def _plain(value: Any) -> Any:
    """A fact for JSON: None for NaN and infinity, and a string for what JSON has no form for."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | bool | None) else str(value)
