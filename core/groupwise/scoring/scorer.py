"""Scorer: several rewards on batches of rollouts, each within its limits."""

import threading
from collections.abc import Collection, Mapping, Sequence
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
from groupwise.scoring.weights import Weights
from groupwise.scoring.worker import Worker

FAMILIES = (
    *("alarm", "evaluation", "mismatch", "multipliers", "nan_rewards", "prompts", "reference"),
    *("replay", "reward_time", "rewards", "time", "watch", "weights"),
)
"""What the names of a run's own metrics begin with, those that have a kind."""
MULTIPLIERS = "multipliers"
"""Where the state has those of constraints; no reward is named so."""


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
        self.rewards, self.weights = tuple(rewards), Weights(rewards)
        self._loop = EventLoop()
        self._workers = {r.name: worker for r in rewards if (worker := _worker(r)) is not None}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward.name for reward in self.rewards)

    def __call__(self, rollouts: Rollouts, state: RunState | None = None) -> Scores:
        """Score every rollout; raises RewardError for a failure that is not to be skipped."""
        return self.finish([self.start(rollouts, state)])

    def start(
        self,
        rollouts: Rollouts,
        state: RunState | None = None,
        *,
        only: Collection[str] | None = None,
        weights: tuple[float, ...] | None = None,
    ) -> Scoring:
        """Begin to score a batch: async rewards and isolated ones are at it from now on.

        only: the names of the rewards that are wanted, all if unset; weights: what each of all
        rewards counts; if unset, what it does in the step that `state` is at. Raises UserError
        where a reward does not fit the batch's columns.
        """
        columns, state = _columns(rollouts), state or RunState()
        counted = weights or self.weights.at(state.global_step)
        wanted = [n for n, r in enumerate(self.rewards) if only is None or r.name in only]
        for number in wanted if len(rollouts) else ():
            self.rewards[number].check_columns(columns, tuple(rollouts.facts))
        calls = [(r, Call(r, rollouts, columns, state)) for r in (self.rewards[n] for n in wanted)]
        outcomes = [Outcome(reward, call, rollouts) for reward, call in calls]
        places: dict[bool, list[tuple[Outcome, Answer]]] = {True: [], False: []}
        for outcome in outcomes if len(rollouts) else ():  # of a chain there may be none to judge
            reward = outcome.reward
            places[self._is_here(reward)].append((outcome, self._begin(reward, outcome.call)))
        return Scoring(
            rollouts,
            outcomes,
            weights=tuple(counted[n] for n in wanted),
            scales=tuple(self.weights.scales[n] for n in wanted),
            here=places[True],
            elsewhere=places[False],
        )

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
        """The state of those that have one, by name, and multipliers; a frozen model is none."""
        multipliers = self.weights.state_dict()
        return {
            **{r.name: r.target.state_dict() for r in self.rewards if r.has_state},
            **({MULTIPLIERS: multipliers} if multipliers else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises UserError where a reward cannot take up its state: it may be another's."""
        self.weights.load_state_dict(state.get(MULTIPLIERS, {}))
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

    def end_step(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """A step was made, the first being 0: multipliers ascend on its means over all processes.

        Returns the weights that changed over the run, and the multipliers, as the step had them.
        """
        counted = self.weights.metrics(step)
        self.weights.ascend({name: metrics[f"rewards/{name}"] for name in self.names})
        return counted


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
