"""Rewards: TRL's call convention, what a reward may have, and `Scores`, the rewards of a batch.

A reward is any callable `f(prompts, completions, **columns) -> list[float | None]`, sync or async.
It receives whole groups, in order, and the columns of the dataset with one value per completion. If
its signature has them, it also receives `groups` (the number of each completion's group: the same
prompt may be drawn twice), `purpose` ("train", "evaluate" or "greedy"), `truncated`, `ended` (why
each completion ended: `Rollouts.ended`), the policy's facts (`completion_ids`, ...) and TRL's
`trainer_state`, `log_extra` and `log_metric`. `None` means "does not apply to this completion". NaN
means that the reward failed on it: as if the completion itself had failed, it has no reward and no
gradient.

A process reward returns a list per completion instead of a number, with one entry per decision: the
reward of the step that ends there, or `None` if none ends there.

`Members` lists what a reward may have besides being callable: `load`, `refresh`, `judges` and more.
"""

from typing import TYPE_CHECKING, Any

from groupwise.rewards.deadline import seconds_left
from groupwise.rewards.errors import RewardError, SampleErrors
from groupwise.rewards.members import Members
from groupwise.rewards.reward import (
    OWN_ARGUMENTS,
    Reward,
    RewardFunction,
    StepRewards,
    is_async,
)
from groupwise.rewards.run_state import RunState

if TYPE_CHECKING:
    from groupwise.rewards.scores import Scores

__all__ = [
    "OWN_ARGUMENTS",
    "Members",
    "Reward",
    "RewardError",
    "RewardFunction",
    "RunState",
    "SampleErrors",
    "Scores",
    "StepRewards",
    "is_async",
    "seconds_left",
]


def __getattr__(name: str) -> Any:
    if name != "Scores":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from groupwise.rewards.scores import Scores  # imports torch, which not everybody needs

    return Scores
