"""RAE: the baseline is what a role has won of late.

When to use it: self-play, and other games in which one side has the advantage (who moves first wins
more often). The reward of a side is compared with what that side has won in the last episodes, not
with other episodes of the same prompt: every episode may begin differently, and `group_size: 1` is
enough. It assumes rewards on one scale, and that the strength of the sides changes slowly.

A role is the word that the environment returns as `role`; without it every learner has one role of
its own, as where each side is another learner.

Where implementations differ: averages move at the end of a step here, by each of its episodes in
turn, in the authors' code after each game of an actor. In both the baseline does not depend on the
reward that it is subtracted from.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor

from groupwise import advantages, objective
from groupwise.algorithms.parts import Advantages, Clipped, Options, Usual
from groupwise.kit.metric_names import Family
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.weights import KeptWeights


class RAE(Usual, advantage=Advantages, surrogate=Clipped):
    """RAE, arXiv:2506.24119: a moving average for each role is the baseline, for self-play.

    A = r - b(role)
    b(role) = decay b(role) + (1 - decay) r, after the step
    """

    class Config(Usual.Config):
        decay: float = Field(
            0.95, ge=0, lt=1, description="how much of the average an episode leaves as it is"
        )
        normalize: objective.Normalize = "constant"

    config: Config
    smallest_group = 1

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.averages: dict[str, float] = {}
        self._rewards: dict[int, list[tuple[int | None, str, float]]] = {}

    def observe(self, scores: Scores, rollouts: Rollouts) -> None:
        super().observe(scores, rollouts)
        each = [None] * len(rollouts) if rollouts.episodes is None else rollouts.episodes.tolist()
        rewards = zip(each, _roles(rollouts), scores.outcome.tolist(), strict=True)
        for group, of_rollout in zip(rollouts.groups.tolist(), rewards, strict=True):
            if not math.isnan(of_rollout[-1]):
                self._rewards.setdefault(group, []).append(of_rollout)

    def estimate(self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]) -> Tensor:
        baseline = [self.averages.get(role, 0.0) for role in _roles(rollouts)]
        return (scores.outcome - scores.outcome.new_tensor(baseline)).nan_to_num()

    def no_signal(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B] bool: all rewards of the group are those that are expected."""
        compared = self.estimate(scores, rollouts, {})
        return advantages.groups_without(compared != 0, rollouts.groups)

    def end_step(self, weights: KeptWeights, step: int) -> Mapping[str, float]:
        """Move the averages by the episodes of the step, in the order of their groups; by one with
        several rollouts of a role once, by their mean.

        Metrics: `baseline/ROLE`, of a role without a name `baseline/all`, as the next step has it.
        """
        decay = self.config.decay
        episodes = dict[tuple[Any, str], list[float]]()
        for group in sorted(self._rewards):
            for number, (episode, role, reward) in enumerate(self._rewards[group]):
                key = (group, number) if episode is None else episode
                episodes.setdefault((key, role), []).append(reward)
        for (_, role), rewards in episodes.items():
            before = self.averages.get(role, 0.0)
            self.averages[role] = decay * before + (1 - decay) * math.fsum(rewards) / len(rewards)
        self._rewards = {}
        own = {f"{Family.BASELINE}/{n or 'all'}": x for n, x in sorted(self.averages.items())}
        return {**super().end_step(weights, step), **own}

    def state_dict(self) -> dict[str, Any]:
        return {"averages": dict(self.averages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.averages, self._rewards = dict(state["averages"]), {}


def _roles(rollouts: Rollouts) -> list[str]:
    """The role of each rollout, "" where it has no name."""
    return [role or "" for role in rollouts.roles or [None] * len(rollouts)]
