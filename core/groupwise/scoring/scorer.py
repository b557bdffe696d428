"""Scorer: several rewards on batches of rollouts, each within its limits."""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from groupwise.errors import UserError
from groupwise.rewards import Reward, RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.call import Call
from groupwise.scoring.event_loop import EventLoop
from groupwise.scoring.outcome import Outcome
from groupwise.scoring.scoring import Answer, Scoring
from groupwise.scoring.watchdog import watched
from groupwise.scoring.worker import Worker

FAMILIES = (
    *("alarm", "evaluation", "mismatch", "nan_rewards", "prompts", "replay", "reward_time"),
    *("rewards", "time"),
)
"""What the names of a run's own metrics begin with, those that have a kind."""


class Scorer:
    """Scores rollouts with several rewards.

    A plain function is called in the main thread, one after the other, as TRL calls it: signals,
    event loops and clients that are bound to a thread then work. Async functions wait in an event
    loop, and isolated ones are called in processes of their own: they begin when a batch is given
    to `start`, and are at it while the main thread samples the next batch or calls the plain ones.
    Where the run itself is not in the main thread, plain ones are isolated, too.
    """

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
            if name.partition("/")[0] in FAMILIES:
                raise UserError(
                    f"a reward cannot be named {name!r}: what it logs would be called "
                    f"`{name}/...`, as metrics of the run itself are; give it another `label`"
                )
        self.rewards = tuple(rewards)
        self._loop = EventLoop()
        self._workers = {r.name: worker for r in rewards if (worker := _worker(r)) is not None}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward.name for reward in self.rewards)

    def __call__(self, rollouts: Rollouts, state: RunState | None = None) -> Scores:
        """Score every rollout; raises RewardError for a failure that is not to be skipped."""
        return self.finish([self.start(rollouts, state)])

    def start(self, rollouts: Rollouts, state: RunState | None = None) -> Scoring:
        """Begin to score a batch: async rewards and isolated ones are at it from now on.

        Raises UserError where a reward does not fit the batch's columns.
        """
        columns = _columns(rollouts)
        for reward in self.rewards:
            reward.check_columns(columns, tuple(rollouts.facts))
        outcomes = [
            Outcome(r, Call(r, rollouts, columns, state or RunState()), rollouts)
            for r in self.rewards
        ]
        places: dict[bool, list[tuple[Outcome, Answer]]] = {True: [], False: []}
        for outcome in outcomes:
            reward = outcome.reward
            places[self._is_here(reward)].append((outcome, self._begin(reward, outcome.call)))
        return Scoring(rollouts, outcomes, here=places[True], elsewhere=places[False])

    def finish(self, scorings: Sequence[Scoring]) -> Scores:
        """The scores of batches that were begun, one after the other.

        Plain rewards are called now, in this thread, while the others go on. Raises RewardError for
        a failure that is not to be skipped.
        """
        for scoring in scorings:
            scoring.call()
        return Scores.concat([scoring.scores() for scoring in scorings])

    def _is_here(self, reward: Reward) -> bool:
        """Whether it is called in this thread."""
        return not reward.is_async and reward.name not in self._workers

    def _begin(self, reward: Reward, call: Call) -> Answer:
        """Begin a call elsewhere; what is returned waits for the answer, or makes the call here."""
        if reward.name in self._workers:
            return self._workers[reward.name].start(reward, call)
        if reward.is_async:
            return self._loop.start(reward, call)
        run = partial(call.run, reward.function)
        return partial(watched, run, who=f"reward {reward.name!r}", deadline=reward.deadline)

    def load(self) -> None:
        """Let rewards with a model load it. Raises UserError where one cannot be had."""
        for reward in self.rewards:
            if reward.name in self._workers:
                self._workers[reward.name].load()
                continue
            load = getattr(reward.target, "load", None)
            if not callable(load):
                continue
            try:
                load()
            except UserError:
                raise
            except ValueError as error:
                raise UserError(f"reward {reward.name!r}: {error}") from error

    def close(self) -> None:
        """End processes and threads; a further call would start them again."""
        for worker in self._workers.values():
            worker.close()
        self._loop.close()

    def state_dict(self) -> dict[str, Any]:
        """The state of those that have one, by name; a frozen model is none."""
        return {
            reward.name: reward.target.state_dict() for reward in self.rewards if reward.has_state
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises UserError where a reward cannot take up its state: it may be another's."""
        for reward in self.rewards:
            if reward.name not in state or not reward.has_state:
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


def _worker(reward: Reward) -> Worker | None:
    """Its process, where it is isolated, or a plain one of a run that is not in the main thread."""
    if reward.isolate:
        return Worker(reward)
    if reward.is_async or threading.current_thread() is threading.main_thread():
        return None
    try:
        return Worker(reward)
    except UserError as error:
        raise UserError(
            f"{error}\nA plain reward is called in the main thread, and this run is in another: "
            f"only there signals and event loops work. It would go to a process of its own. Start "
            f"the run in the main thread, or make the reward async"
        ) from error


def _columns(rollouts: Rollouts) -> dict[str, list[Any]]:
    """The dataset's columns but the prompt; a value absent from a row is None."""
    names = dict.fromkeys(name for row in rollouts.prompts for name in row)
    return {name: [row.get(name) for row in rollouts.prompts] for name in names if name != "prompt"}
