"""Experience: the scored rollouts of a step, with groups of equal reward replaced."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from groupwise import processes
from groupwise.algorithm import Algorithm
from groupwise.config.train import TrainSection
from groupwise.prompts.draws import Draw, Prompts
from groupwise.prompts.weighted import Weighted
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.scoring import Scoring
from groupwise.training import step_metrics, turn_rewards, turns
from groupwise.training.clock import Clock
from groupwise.training.episode_sampler import EpisodeSampler
from groupwise.training.episodes import Episodes
from groupwise.training.judge import Judge
from groupwise.training.training_batch import TrainingBatch


@dataclass(kw_only=True)
class Scored:
    """Rollouts of all policies, and the scores of those that rewards judge, on this process.

    metrics: of the step, over all processes; dummies: by label of the learner, a rollout for passes
    without effect while other processes have more micro-batches; None if there is one process;
    advantages: by label of the learner, [B] for the rollouts of its batch, once it has learned.
    """

    episodes: Episodes
    scores: Scores
    metrics: Mapping[str, Any] = field(default_factory=dict)
    dummies: Mapping[str, Rollouts | None] = field(default_factory=dict)
    advantages: dict[str, Tensor] = field(default_factory=dict)

    @property
    def rollouts(self) -> Rollouts:
        """Those that rewards judged, and those that failed."""
        return self.episodes.judged

    @cached_property
    def batches(self) -> Mapping[str, TrainingBatch]:
        """The training batch of each player, by label, with failed rollouts."""
        return self.episodes.training_batches(self.scores)

    def select(self, rows: Tensor) -> "Scored":
        """The part of whole groups, as `Episodes.select`."""
        return Scored(episodes=self.episodes.select(rows), scores=self.scores.select(rows))

    @staticmethod
    def concat(parts: "Sequence[Scored]") -> "Scored":
        """All parts as one, in order."""
        return Scored(
            episodes=Episodes.concat([part.episodes for part in parts]),
            scores=Scores.concat([part.scores for part in parts]),
        )


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of sampling: batches of whole groups, whose scoring has begun."""

    draws: Sequence[Draw]
    batches: Sequence[Episodes]
    scorings: Sequence[Scoring]


class Experience:
    """Yields the scored rollouts of one step after the other.

    Async and isolated rewards score a batch while the next one is sampled.

    Its state is the position in the prompts after the last step that was yielded. algorithms: by
    label of the learner; failures: by cause (a reward, or `/POLICY`), a sentence on a completion of
    the last step that failed, on any process.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        prompts: Prompts,
        scorer: Scorer,
        judge: Judge,
        *,
        algorithms: Mapping[str, Algorithm],
        settings: TrainSection,
        accelerator: Accelerator,
        clock: Clock,
    ) -> None:
        self.sampler, self.prompts, self.scorer, self.judge = sampler, prompts, scorer, judge
        self.settings = settings
        self.algorithms = algorithms
        self.samples_with = {label: a.samples_with for label, a in algorithms.items()}
        self.refills = any(algorithm.refills for algorithm in algorithms.values())
        self.accelerator, self.clock = accelerator, clock
        self.prompts_state = prompts.state_dict()
        self.failures: dict[str, str] = {}

    def next(self, state: RunState, *, ahead: bool = False) -> Scored:
        """The experience of step `state.global_step`, counted from 0.

        ahead: whether the next step may be sampled before the update of this one; only `Ahead`
        does that.
        """
        experience = self._scored(self._first_round(state), state)
        self.prompts_state = self.prompts.state_dict()
        return experience

    def drop(self) -> None:
        """Drop rollouts that are sampled ahead."""

    def state_dict(self) -> dict[str, Any]:
        return self.prompts_state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.drop()
        self.prompts.load_state_dict(state)
        self.prompts_state = self.prompts.state_dict()
        self.sampler.forget()

    # ---- sampling

    def _first_round(self, state: RunState) -> Round:
        return self._round(self.prompts.take(self.settings.groups_per_step), state)

    def _round(self, draws: Sequence[Draw], state: RunState) -> Round:
        """Sample this process's share of the draws, and begin to score it."""
        with self.clock.time("sample"):
            self.sampler.begin(state.global_step)
            self.sampler.follow(self.samples_with, state.global_step)
            batches = self.sampler.draw(draws)
        return self._begun(draws, batches, state)

    def _begun(self, draws: Sequence[Draw], batches: Iterator[Episodes], state: RunState) -> Round:
        """Begin to score each batch as soon as it is sampled.

        Plain rewards are called before the next batch is sampled, so that the facts' tensors of
        one batch at a time are on the device.
        """
        episodes: list[Episodes] = []
        scorings: list[Scoring] = []
        while True:
            with self.clock.time("sample"):
                part = next(batches, None)
            if part is None:
                return Round(draws=draws, batches=episodes, scorings=scorings)
            with self.clock.time("reward"):
                scoring = self.scorer.start(part.judged, state)
                part = replace(part, judged=scoring.rollouts)
                if self.calls_at_once:
                    scoring.call()
            episodes.append(part)
            scorings.append(scoring)

    @property
    def calls_at_once(self) -> bool:
        """Whether plain rewards of a batch are called before the next one is sampled."""
        return True

    # ---- scoring and refilling

    def _scored(self, first: Round, state: RunState) -> Scored:
        """The rollouts of a step with their scores; draws that teach nothing are replaced.

        Whether one does is decided among those that would be trained on with it, since an algorithm
        may compare a group with the rest. Those of the last round stay: they count in the
        denominators of the loss.
        """
        self.failures = {}
        scored = self._finished(first)
        dummies = self._dummies(scored)
        scored = self._without_dummies(first.draws, scored)
        no_signal = self._no_signal(scored)
        metrics = self._describe(scored, no_signal)
        refilled = 0
        for _ in range(self.settings.max_refills if self.refills else 0):
            replaced = _without_signal(scored, no_signal)
            missing = processes.total(len(replaced))
            if not missing:
                break
            more = self._round(self.prompts.take(missing), state)
            fresh = self._without_dummies(more.draws, self._finished(more))
            kept = ~torch.isin(scored.rollouts.groups.cpu(), replaced)
            scored = Scored.concat([scored.select(kept), fresh])
            no_signal = self._no_signal(scored)
            metrics = step_metrics.with_round(metrics, self._describe(fresh, {}))
            refilled += missing
        if self.refills:
            metrics["refilled_groups"] = refilled
        scored.metrics, scored.dummies = metrics, dummies
        return scored

    def _dummies(self, scored: Scored) -> dict[str, Rollouts | None]:
        """By label, a rollout for dummy passes if there are several processes; a failed one if all
        failed.

        Raises UserError, on all processes, if a policy of a chain has none on one of them.
        """
        if self.accelerator.num_processes == 1:
            return dict.fromkeys(scored.batches)
        processes.each(scored.episodes.check_not_empty)
        return {label: _dummy(batch) for label, batch in scored.batches.items()}

    def _finished(self, begun: Round) -> Scored:
        """The rollouts of a round with their scores; waits for the rewards."""
        with self.clock.time("reward"):
            scores = self.scorer.finish(begun.scorings)
        return Scored(episodes=Episodes.concat(begun.batches), scores=scores)

    def _without_dummies(self, draws: Sequence[Draw], scored: Scored) -> Scored:
        """The same; empty if this process has no share of the draws, so that all are dummies."""
        if not self.sampler.share(draws):
            return scored.select(torch.empty(0, dtype=torch.int64))
        return scored

    def _no_signal(self, scored: Scored) -> Mapping[str, Tensor]:
        """By label of the learners, [B] bool: rollouts of groups without a training signal."""
        return {label: scored.batches[label].no_signal(a) for label, a in self.algorithms.items()}

    def _judged_without(self, scored: Scored, no_signal: Mapping[str, Tensor]) -> Tensor | None:
        """[B] bool: judged rollouts that teach nothing, compared with those of the same draw."""
        batch = TrainingBatch(rollouts=scored.rollouts, scores=scored.scores)
        each = [
            own
            if scored.episodes.players[label] is None
            else batch.no_signal(self.algorithms[label])
            for label, own in no_signal.items()
        ]
        return torch.stack(each).all(dim=0) if each else None

    def _describe(self, scored: Scored, no_signal: Mapping[str, Tensor]) -> dict[str, Any]:
        """Metrics of a round; no_signal: {} if it is a further one, which adds only counts."""
        episodes, scores, batches = scored.episodes, scored.scores, scored.batches
        self.failures |= processes.first_of({**episodes.failures, **scores.failures})
        right = self.judge.right(scores).masked_fill(scores.failed, math.nan)
        metrics = step_metrics.describe(
            episodes.judged,
            scores,
            no_signal=self._judged_without(scored, no_signal),
            right=right if self.judge.name in scores.names else None,
            logged=self.sampler.logged,
            lost=len(episodes.lost),
            multi_turn=self.sampler.environment.multi_turn,
            columns=self.sampler.logged_columns,
            turns=turns.counted(episodes),
        )
        metrics |= turn_rewards.measured(episodes.calls).of_all_processes().result()
        if isinstance(self.prompts, Weighted):
            outcomes = step_metrics.outcomes(episodes.judged, right)
            metrics |= self.prompts.observe(outcomes)
        if len(batches) == 1:
            return metrics
        logged = {label: s.policy.logged for label, s in self.sampler.samplings.items()}
        return metrics | step_metrics.of_learners(batches, no_signal, logged, len(episodes.lost))


def _without_signal(scored: Scored, no_signal: Mapping[str, Tensor]) -> Tensor:
    """[D] int64: the numbers of this process's draws that teach no learner anything."""
    draws = {label: scored.episodes.draws(label) for label in scored.batches}
    alive = [draws[label][~rows] for label, rows in no_signal.items()]
    every = torch.cat([*draws.values()]).unique()
    return every[~torch.isin(every, torch.cat(alive))]


def _dummy(batch: TrainingBatch) -> Rollouts:
    rollouts = batch.without_failed().rollouts
    if not len(rollouts):
        rollouts = batch.rollouts
    return rollouts.select([int(rollouts.extents.argmax())])
