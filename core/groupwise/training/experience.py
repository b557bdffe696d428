"""Experience: what a step learns from: rollouts, scored, with dead groups replaced."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator

from groupwise import processes
from groupwise.algorithm import Algorithm
from groupwise.config.sections import TrainSection
from groupwise.prompts.draws import Draw, Prompts
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise.training import step_metrics
from groupwise.training.clock import Clock
from groupwise.training.judge import Judge
from groupwise.training.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Rollouts of a step with their scores, on this process, and metrics of all processes.

    spare: a rollout that a process runs without effect while others have more of them, None where
    there is one process.
    """

    rollouts: Rollouts
    scores: Scores
    metrics: Mapping[str, Any]
    spare: Rollouts | None = None


class Experience:
    """Yields the scored rollouts of one step after the other.

    Its state is the place in the prompts after the last step that was yielded.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Prompts,
        scorer: Scorer,
        judge: Judge,
        *,
        algorithm: Algorithm,
        settings: TrainSection,
        accelerator: Accelerator,
        clock: Clock,
    ) -> None:
        self.sampling, self.prompts, self.scorer, self.judge = sampling, prompts, scorer, judge
        self.algorithm, self.settings = algorithm, settings
        self.accelerator, self.clock = accelerator, clock
        self.place = prompts.state_dict()

    def next(self, state: RunState, *, ahead: bool = False) -> Scored:
        """The experience of the step after `state.global_step` steps.

        ahead: whether more may be sampled before this step is learned from; only `Ahead` does.
        """
        draws, rollouts = self._first_round(state.global_step)
        experience = self._scored(draws, rollouts, state)
        self.place = self.prompts.state_dict()
        return experience

    def drop(self) -> None:
        """Let go of what is sampled ahead."""

    def state_dict(self) -> dict[str, int]:
        return self.place

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.drop()
        self.prompts.load_state_dict(state)
        self.place = self.prompts.state_dict()
        self.sampling.forget()

    # ---- sampling

    def _follow(self, step: int) -> None:
        self.sampling.policy.begin(step)
        self.sampling.follow(self.algorithm.samples_with, step)

    def _first_round(self, step: int) -> tuple[list[Draw], Rollouts]:
        """The draws of a step, and this process's rollouts of them."""
        draws = self.prompts.take(self.settings.groups_per_step)
        return draws, self._sample(draws, step)

    def _sample(self, draws: Sequence[Draw], step: int) -> Rollouts:
        with self.clock.time("sample"):
            self._follow(step)
            return self._rollouts(draws)

    def _rollouts(self, draws: Sequence[Draw]) -> Rollouts:
        """This process's share of the draws.

        A process without draws samples those of the first, without use: what processes do together,
        all of them must do.
        """
        parts = self.sampling.draw(
            draws, self.settings.group_size, space="train", purpose="train", idle=True
        )
        return Rollouts.concat(list(parts))

    # ---- scoring and refilling

    def _scored(self, draws: Sequence[Draw], rollouts: Rollouts, state: RunState) -> Scored:
        """The rollouts of these draws with their scores; groups of equal reward are refilled."""
        parts = [self._score(draws, rollouts, state)]
        metrics = self._describe(*parts[0])
        spare = None
        if self.accelerator.num_processes > 1:
            spare = rollouts.select([int(rollouts.extents.argmax())])
        if not self.algorithm.refills:
            ours, scores = parts[0]
            return Scored(rollouts=ours, scores=scores, metrics=metrics, spare=spare)
        wanted, refilled = self.settings.groups_per_step, 0
        for _ in range(self.settings.max_refills):
            missing = wanted - sum(processes.total(_alive_groups(r, s)) for r, s in parts)
            if missing <= 0:
                break
            more = self.prompts.take(missing)
            parts.append(self._score(more, self._sample(more, state.global_step), state))
            refilled += missing
            metrics = step_metrics.with_round(metrics, self._describe(*parts[-1]))
        ours, scores = self._fill(parts)
        metrics = {**metrics, "refilled_groups": refilled}
        return Scored(rollouts=ours, scores=scores, metrics=metrics, spare=spare)

    def _score(
        self, draws: Sequence[Draw], rollouts: Rollouts, state: RunState
    ) -> tuple[Rollouts, Scores]:
        with self.clock.time("reward"):
            scores = self.scorer(rollouts, state)
        rollouts = rollouts.with_facts_on_cpu()
        if not self.sampling.share(draws):
            return rollouts.select([]), scores.select(torch.empty(0, dtype=torch.int64))
        return rollouts, scores

    def _fill(self, parts: Sequence[tuple[Rollouts, Scores]]) -> tuple[Rollouts, Scores]:
        """The live groups of all rounds, filled up with dead ones of the first to the full count.

        What stays dead after the last round still counts in the loss's denominators.
        """
        rollouts = Rollouts.concat([part for part, _ in parts])
        scores = Scores.concat([part for _, part in parts])
        groups = rollouts.groups.cpu()
        dead = scores.dead(groups)
        alive, spare = processes.union(groups[~dead]), processes.union(groups[dead])
        room = max(0, self.settings.groups_per_step - len(alive))
        kept = torch.isin(groups, torch.cat([alive, spare[:room]]))
        return rollouts.select(kept), scores.select(kept)

    def _describe(self, rollouts: Rollouts, scores: Scores) -> dict[str, Any]:
        self.judge.look(scores)
        self.judge.agree()
        right = None if self.judge.measures else self.judge.right(scores)
        logged = self.sampling.policy.logged
        return step_metrics.describe(rollouts, scores, right=right, logged=logged)


class Ahead(Experience):
    """Samples a step's rollouts before the step before it is learned from.

    So they are of weights one step older, and an engine draws them while the update runs; draws and
    seeds are those of `Experience`. Nothing is sampled ahead where `ahead` is False, as before an
    evaluation or a checkpoint, so that a resumed run draws by the same weights.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._flight: tuple[list[Draw], Future[Rollouts]] | None = None
        # An engine answers while this process computes. A policy that samples itself would compete
        # with its own update, and changes under it: it samples at once.
        own = self.sampling.sampler is self.sampling.policy
        self._thread = None if own else ThreadPoolExecutor(1, thread_name_prefix="ahead")

    def next(self, state: RunState, *, ahead: bool = False) -> Scored:
        experience = super().next(state)
        if ahead:
            self._send(state.global_step)
        return experience

    def _first_round(self, step: int) -> tuple[list[Draw], Rollouts]:
        if self._flight is None:
            return super()._first_round(step)
        draws, flight = self._flight
        with self.clock.time("sample"):
            rollouts = flight.result()
        self._flight = None
        return draws, rollouts

    def _send(self, step: int) -> None:
        """Have the next step's rollouts drawn, by the weights of this step."""
        draws = self.prompts.take(self.settings.groups_per_step)
        with self.clock.time("sample"):
            self.sampling.policy.begin(step + 1)
            self.sampling.follow(self.algorithm.samples_with, step)
            if self._thread is not None:
                self._flight = draws, self._thread.submit(self._rollouts, draws)
                return
            done: Future[Rollouts] = Future()
            done.set_result(self._rollouts(draws))
            self._flight = draws, done

    def drop(self) -> None:
        """Let go of what is sampled ahead, and of its place in the prompts."""
        if self._flight is not None:
            self._flight[1].exception()  # wait: nothing may be in flight when weights change
            self._flight = None
            self.prompts.load_state_dict(self.place)


def _alive_groups(rollouts: Rollouts, scores: Scores) -> int:
    groups = rollouts.groups.cpu()
    return len(groups[~scores.dead(groups)].unique())
