"""Metric names: the families of a run's metrics, and the names that would collide with them.

A name without `/` is a metric of the run as a whole (`reward`). One with `/` begins with a family
of this list (`rewards/correct`), with the label of a learner (`writer/kl`), or with the name of a
reward that logs metrics itself (`correct/steps`): so no learner or reward is named like a family.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TypeVar

V = TypeVar("V")
JUDGED = ("accuracy", "greedy_accuracy")
"""Metrics that count right completions, by one reward."""


class Family(StrEnum):
    """The first part of metrics that belong together; formatted, it is this part."""

    ALARM = "alarm"
    ALARM_SINCE = "alarm_since"
    BASELINE = "baseline"
    ENDED = "ended"
    ENVIRONMENT = "environment"
    EVALUATION = "evaluation"
    FAILED = "failed"
    MEMORY = "memory"
    MISMATCH = "mismatch"
    MULTIPLIERS = "multipliers"
    PROMPTS = "prompts"
    REFERENCE = "reference"
    REPLAY = "replay"
    REWARD_TIME = "reward_time"
    REWARDS = "rewards"
    STALE = "stale"
    STALENESS = "staleness"
    TIME = "time"
    TURNS = "turns"
    TURN_REWARD = "turn_reward"
    WATCH = "watch"
    WEIGHTS = "weights"

    def of(self, metrics: Mapping[str, V]) -> dict[str, V]:
        """Those metrics that belong to it, without the family in their names."""
        prefix = f"{self}/"
        return {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix)}


_FAMILIES = frozenset(Family)


def titled(name: str, accuracy: str | None) -> str:
    """The name of a metric for people: with that of the reward that says what is right, if the
    metric counts right completions.

    accuracy: the name of this reward; "" or None: not known.
    """
    is_judged = name.partition("/")[0] in JUDGED or name.startswith("pass_at_")
    return f"{name} ({accuracy})" if is_judged and accuracy else name


def problem_of_reward(name: str) -> str | None:
    """Why no reward can have this name; None if it can."""
    if name.partition("/")[0] not in _FAMILIES:
        return None
    return (
        f"a reward cannot be named {name!r}: metrics that it logs are named `{name}/...`, as "
        f"metrics of the run itself are; give it another `label`"
    )


def problem_of_label(label: str, taken: Collection[str]) -> str | None:
    """Why no learner can have this label; None if it can.

    taken: names of rewards, whose metrics begin with them, and of arguments of rewards, which get
    the texts of a chain's policies by their labels.
    """
    if label in _FAMILIES or label in taken:
        return f"{label!r} already names metrics or an argument of rewards; choose another"
    return None
