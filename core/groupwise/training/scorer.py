"""Scoring: several rewards on one batch, concurrently, each within its limits."""

import asyncio
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from groupwise.errors import UserError
from groupwise.rewards import Reward, RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.storage.state import HasState
from groupwise.training.reward_call import Call


class Scorer:
    """Scores rollouts with several rewards at once, each in a thread of its own."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        if not rewards:
            raise UserError("at least one reward is needed")
        names = [reward.name for reward in rewards]
        for name in names:
            if names.count(name) > 1:
                raise UserError(
                    f"two rewards are named {name!r}; give one of them another label: "
                    f"`{{name: {name}, label: ...}}`, in Python "
                    f'`{{"name": {name}, "label": ...}}` with the function itself as name'
                )
        self.rewards = tuple(rewards)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward.name for reward in self.rewards)

    def __call__(self, rollouts: Rollouts, state: RunState | None = None) -> Scores:
        """Score every rollout; raises RewardError for a failure that is not to be skipped."""
        columns = _columns(rollouts)
        for reward in self.rewards:
            reward.check_columns(columns, tuple(rollouts.facts))
        calls = [Call(reward, rollouts, columns, state or RunState()) for reward in self.rewards]
        futures = [call.start(self._event_loop) for call in calls]
        for call, future in zip(calls, futures, strict=True):
            call.finish(future)
        return Scores(
            names=self.names,
            weights=tuple(reward.weight for reward in self.rewards),
            values=torch.tensor(
                [call.values for call in calls], dtype=torch.float64
            ).T.contiguous(),
            failed=torch.stack([call.failed for call in calls]).any(dim=0),
            seconds={call.reward.name: call.seconds for call in calls},
            extra={name: column for call in calls for name, column in call.extra.items()},
            metrics={name: value for call in calls for name, value in call.metrics.items()},
            steps=_steps(calls, rollouts),
            judges_steps=frozenset(call.reward.name for call in calls if call.steps),
        )

    def load(self) -> None:
        """Let rewards with a model load it. Raises UserError where one cannot be had."""
        for reward in self.rewards:
            load = getattr(reward.target, "load", None)
            if not callable(load):
                continue
            try:
                load()
            except UserError:
                raise
            except ValueError as error:
                raise UserError(f"reward {reward.name!r}: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        """The state of those that have one, by name; a frozen model is none."""
        return {
            reward.name: reward.target.state_dict()
            for reward in self.rewards
            if isinstance(reward.target, HasState)
            and (hasattr(reward.target, "refresh") or not isinstance(reward.target, nn.Module))
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises UserError where a reward cannot take up its state: it may be another's."""
        for reward in self.rewards:
            if reward.name not in state or not isinstance(reward.target, HasState):
                continue
            try:
                reward.target.load_state_dict(state[reward.name])
            except Exception as error:  # whatever the code of a user raises
                raise UserError(
                    f"reward {reward.name!r} cannot take up its state in the checkpoint "
                    f"({type(error).__name__}: {error}); is it still the same reward?"
                ) from error

    def refresh(self, rollouts: Rollouts, scores: Scores) -> None:
        """Let rewards that learn (a reward model trained on) see what was scored.

        Tensors among the facts are in CPU memory by then.
        """
        for reward in self.rewards:
            learn = getattr(reward.target, "refresh", None)
            if learn is not None:
                learn(rollouts, scores)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """One loop for the life of the run, so that async clients may be kept between calls."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True, name="rewards").start()
        return self._loop


def _steps(calls: Sequence["Call"], rollouts: Rollouts) -> torch.Tensor | None:
    """[B, T] float64: weighted step rewards summed where steps end, NaN where none does."""
    judging = [call for call in calls if call.steps]
    if not judging:
        return None
    total = torch.full(rollouts.mask.shape, math.nan, dtype=torch.float64)
    for call in judging:
        for row, rewards in call.steps.items():
            for at, value in enumerate(rewards):
                if value is not None:
                    there = total[row, at].nan_to_num(0.0)
                    total[row, at] = there + call.reward.weight * float(value)
    total[torch.stack([call.failed for call in calls]).any(dim=0)] = math.nan
    return total


def _columns(rollouts: Rollouts) -> dict[str, list[Any]]:
    """The dataset's columns but the prompt; a value absent from a row is None."""
    names = dict.fromkeys(name for row in rollouts.prompts for name in row)
    return {name: [row.get(name) for row in rollouts.prompts] for name in names if name != "prompt"}
