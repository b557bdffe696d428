"""Scorer: calls several rewards on batches of rollouts, each with its deadline."""

import inspect
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from groupwise.kit import terminal
from groupwise.kit.copies import copied
from groupwise.kit.errors import UserError, first_line
from groupwise.kit.metric_names import Family, problem_of_reward
from groupwise.rewards import Reward, RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise.scoring.event_loop import EventLoop
from groupwise.scoring.reward_call import Failure, RewardCall
from groupwise.scoring.reward_result import RewardResult
from groupwise.scoring.reward_weights import RewardWeights
from groupwise.scoring.scoring import Scoring
from groupwise.scoring.settings import contained
from groupwise.scoring.watchdog import within_deadline
from groupwise.scoring.worker import Worker

MULTIPLIERS = "multipliers"
"""The key of the constraints' multipliers in the state; no reward can have this name."""


class Scorer:
    """Scores rollouts with several rewards; `scorer(rollouts)` needs no run.

    Plain functions are called in the main thread, one after the other, as TRL calls them, so that
    signals, event loops and thread-bound clients work. Async functions run in an event loop, and
    isolated ones in processes of their own: both begin in `start`, and run while the main thread
    samples the next batch or calls the plain ones. If the run itself is not in the main thread,
    plain rewards are isolated, too.
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
            if problem := problem_of_reward(name):
                raise UserError(problem)
        self.rewards, self.weights = tuple(rewards), RewardWeights(rewards)
        self._loop = EventLoop()
        self._is_loaded = False
        self._workers = {r.name: worker for r in rewards if (worker := _worker(r)) is not None}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward.name for reward in self.rewards)

    def __call__(self, rollouts: Rollouts, state: RunState | None = None) -> Scores:
        """Score every rollout; raises RewardError for a failure that is not skipped."""
        return self.finish([self.start(rollouts, state)])

    def start(
        self,
        rollouts: Rollouts,
        state: RunState | None = None,
        *,
        purpose: Purpose = "train",
        references: Sequence[Sequence[Any]] | None = None,
        only: Collection[str] | None = None,
    ) -> Scoring:
        """Begin to score a batch: starts the calls of async and of isolated rewards.

        Rewards receive the rollouts that did not fail; a group may thus be smaller. Plain ones get
        the facts' tensors on the device of the policy, in `Scoring.call`; the others, which may
        hold theirs for long, and `Scoring.rollouts` have them in CPU memory.

        purpose: what the batch was sampled for; in training the weights are those of the step in
        `state`, in evaluations the final ones. references: for each rollout, the completions that
        relative rewards compare it with, in evaluations; only: names of the rewards to call, all if
        unset. Raises UserError if a reward does not fit the batch's columns.
        """
        whole = rollouts.with_facts_on_cpu()
        usable, on_cpu = (
            r.select(~r.failed) if bool(r.failed.any()) else r for r in (rollouts, whole)
        )
        state = state or RunState()
        if references is not None:
            references = [
                each for each, fails in zip(references, rollouts.failed, strict=True) if not fails
            ]
        of_batch = (~rollouts.failed).nonzero().flatten().tolist()
        is_training = purpose == "train"
        weights = self.weights.at(state.global_step) if is_training else self.weights.final
        chosen = [n for n, r in enumerate(self.rewards) if only is None or r.name in only]
        make = partial(RewardCall, state=state, purpose=purpose)
        results = list[RewardResult]()
        for reward in (self.rewards[number] for number in chosen):
            is_here = not reward.is_async and reward.name not in self._workers
            rows = [n for n, row in enumerate(usable.prompts) if reward.judges(row)]
            own, own_on_cpu, compared = usable, on_cpu, references
            if len(rows) < len(usable):  # others are of sources that it does not judge
                at = torch.tensor(rows, dtype=torch.int64)
                own, own_on_cpu = usable.select(at), on_cpu.select(at)
                compared = None if references is None else [references[n] for n in rows]
            columns = _columns(own)
            if rows:
                reward.check_columns(columns, tuple(own.facts))
            call = make(
                reward, own if is_here else own_on_cpu, columns=columns, references=compared
            )
            # None: all failed, or a chain has none, or it judges none of these sources.
            answer = self._begin(reward, call) if rows else None
            places = [of_batch[n] for n in rows]
            results.append(
                RewardResult(reward, call, own_on_cpu, answer, is_here=is_here, rows=places)
            )
        return Scoring(
            whole,
            results,
            weights=tuple(weights[n] for n in chosen),
            scales=tuple(self.weights.scales[n] for n in chosen),
        )

    def finish(self, scorings: Sequence[Scoring], step: int | None = None) -> Scores:
        """The scores of batches that `start` began, joined in order.

        Calls the plain rewards that are not called yet, and then waits for the others. Raises
        RewardError for a failure that is not skipped.

        step: takes its weights, where the batch was drawn for a later step than the one in which it
        was begun.
        """
        for scoring in scorings:
            scoring.call()
            if step is not None:
                scoring.weights = self.weights.at(step)
        return Scores.concat([scoring.scores() for scoring in scorings])

    def weighted(self, scores: Scores, step: int) -> Scores:
        """Scores by the same rewards with the weights of a step."""
        return replace(scores, weights=self.weights.at(step), scales=self.weights.scales)

    @property
    def changes(self) -> bool:
        """Whether a reward learns, or has another state, so that values depend on the step."""
        members = [reward.members for reward in self.rewards]
        return any(m.refresh is not None or m.state_dict is not None for m in members)

    @property
    def works_beside(self) -> bool:
        """Whether a reward is called elsewhere than in the main thread."""
        return bool(self._workers) or any(reward.is_async for reward in self.rewards)

    def _begin(self, reward: Reward, call: RewardCall) -> Callable[[], Any]:
        """Start a call elsewhere; returns a function that waits for it, or makes the call here."""
        if reward.name in self._workers:
            return self._workers[reward.name].start(call)
        if reward.is_async:
            return self._loop.start(reward, call)
        run = partial(call.run, reward.function)
        who = f"reward {reward.name!r}"
        return contained()(partial(within_deadline, run, who=who, deadline=reward.deadline))

    def load(self) -> None:
        """Load the models of rewards that have one. Raises UserError if that fails."""
        self._is_loaded = True
        for reward in self.rewards:
            if reward.name in self._workers:
                self._workers[reward.name].load()
            elif reward.members.load is not None:
                try:
                    with contained():
                        reward.members.load()
                except UserError:
                    raise
                except (ValueError, Failure) as error:
                    raise UserError(f"reward {reward.name!r}: {error}") from error

    def close(self) -> None:
        """Close what was loaded, and end the rewards' processes and threads; a later call starts
        them again."""
        for reward in self.rewards:
            if reward.name in self._workers:
                self._workers[reward.name].close()
            elif self._is_loaded and reward.members.close is not None:
                self._close(reward, reward.members.close)
        self._is_loaded = False
        self._loop.close()

    def _close(self, reward: Reward, close: Callable[[], Any]) -> None:
        """Close one reward; an error is only shown, since the run is over."""
        try:
            if inspect.iscoroutinefunction(close):
                self._loop.wait(close(), reward.deadline)
                return
            with contained():
                close()
        except Exception as error:  # a user's code may raise anything
            terminal.say(f"note: reward {reward.name!r} cannot be closed: {first_line(error)}")

    def teach(
        self,
        rollouts: Rollouts,
        scores: Scores,
        state: RunState,
        *,
        watched: "Scorer | None" = None,
        labelled: Callable[[str, Scores], None] = lambda *_: None,
    ) -> dict[str, float]:
        """Call `refresh(rollouts, scores)` of the rewards that learn; returns their metrics.

        If the reward's `labels` names a watched reward, `scores` are that one's, which the policy
        is not trained on; otherwise they are those of the step. With `every`, it is called every so
        many steps, with 0 never. Tensors among the facts are in CPU memory.

        state: when the rollouts were drawn; labelled: is called with the name and the scores, on
        this process, of each watched reward that gave labels. Raises UserError if a reward cannot
        learn from them.
        """
        metrics: dict[str, float] = {}
        for reward in self.rewards:
            members, examples = reward.members, scores
            every = members.every
            if members.refresh is None or not every or (state.global_step + 1) % every:
                continue
            if members.labels is not None:
                assert watched is not None
                examples = watched.finish([watched.start(rollouts, state, only=[members.labels])])
                labelled(members.labels, examples)
            own = replace(
                rollouts,
                prompts=copied(rollouts.prompts),
                completions=copied(rollouts.completions),
                facts=copied(rollouts.facts),
            )
            try:
                with contained():
                    learned = members.refresh(own, examples) or {}
            except (ValueError, Failure) as error:
                raise UserError(f"reward {reward.name!r} cannot learn: {error}") from error
            metrics |= {f"{reward.name}/{name}": value for name, value in learned.items()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The states of rewards that have one, by name, and the multipliers."""
        multipliers = self.weights.state_dict()
        return {
            **{
                reward.name: reward.members.state_dict()
                for reward in self.rewards
                if reward.members.state_dict is not None
            },
            **({MULTIPLIERS: multipliers} if multipliers else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises UserError if a reward cannot load its state, which may be of another reward."""
        self.weights.load_state_dict(state.get(MULTIPLIERS, {}))
        for reward in self.rewards:
            load = reward.members.load_state_dict
            if reward.name not in state or load is None:
                continue
            try:
                load(state[reward.name])
            except Exception as error:  # a user's code may raise anything
                raise UserError(
                    f"reward {reward.name!r} cannot load its state from the checkpoint "
                    f"({type(error).__name__}: {error}); is it still the same reward?"
                ) from error

    def end_step(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Update the multipliers by the step's means over all processes; the first step is 0.

        Returns as metrics the scheduled weights and the multipliers that this step used.
        """
        used = self.weights.metrics(step)
        self.weights.ascend({name: metrics[f"{Family.REWARDS}/{name}"] for name in self.names})
        return used


def _worker(reward: Reward) -> Worker | None:
    """A worker for an isolated reward, or for a plain one if the run is not in the main thread."""
    if reward.isolate:
        return Worker(reward)
    if reward.is_async or threading.current_thread() is threading.main_thread():
        return None
    try:
        return Worker(reward)
    except UserError as error:
        raise UserError(
            f"{error}\nThis run is not in the main thread, where plain rewards are called (only "
            f"there do signals and event loops work), so this one would need a process of its own. "
            f"Start the run in the main thread, or make the reward async"
        ) from error


def _columns(rollouts: Rollouts) -> dict[str, list[Any]]:
    """The dataset's columns except the prompt; a value missing from a row is None."""
    names = dict.fromkeys(name for row in rollouts.prompts for name in row)
    return {name: [row.get(name) for row in rollouts.prompts] for name in names if name != "prompt"}
