"""Experience: the judged groups of a step, with those that teach nothing replaced."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from groupwise import processes
from groupwise.algorithm import Algorithm
from groupwise.config.train import TrainSection
from groupwise.prompts.draws import Prompts
from groupwise.prompts.weighted import Weighted
from groupwise.record import Call, Group
from groupwise.record.gather import by_draw, gather, judged, light, scores_of
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.scoring import Scoring
from groupwise.training import failures, step_metrics, turn_rewards, turns
from groupwise.training.clock import Clock
from groupwise.training.credit import credit
from groupwise.training.episode_sampler import EpisodeSampler
from groupwise.training.judge import Judge
from groupwise.training.signal import no_signal

View = tuple[Rollouts, Scores]
"""Rollouts without trajectories, in CPU memory, and their scores."""


@dataclass(kw_only=True)
class Step:
    """The groups of a step on this process, judged."""

    groups: Sequence[Group]
    like: Scores
    """The rewards of the step; its rows are those of the last round of sampling."""
    sampler: EpisodeSampler
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Over all processes."""
    dummies: Mapping[str, Rollouts | None] = field(default_factory=dict)
    """By label of the learner, a rollout for passes without effect while other processes have more
    micro-batches; None if there is one process."""

    @property
    def judged(self) -> list[Call]:
        """The calls that rewards judged, and those that failed."""
        return [call for group in self.groups for call in group.judged]

    def firsts(self, label: str) -> list[Call]:
        """The first call of each rollout of a player."""
        return [call for group in self.groups for call in group.rollouts(label)]

    def rest(self, label: str) -> list[Call] | None:
        """The first calls of judged rollouts of other players that are compared with a player's;
        None if there are none."""
        if len(self.sampler.casts) == 1:
            return None
        return [call.first for call in self.judged if call.label != label]

    @property
    def rollouts(self) -> Rollouts:
        """What rewards judged: without trajectories, in CPU memory."""
        return judged(self.judged, self.sampler.columns)

    @property
    def scores(self) -> Scores:
        """Those of `rollouts`."""
        return scores_of([call.first for call in self.judged], self.like)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of sampling: the groups that were drawn for all processes, those that this one
    played, and their scoring, which has begun."""

    drawn: Sequence[Group]
    played: Sequence[Group]
    scorings: Sequence[Scoring]


class Experience:
    """Yields the judged groups of one step after the other.

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

    def next(self, state: RunState, *, ahead: bool = False) -> Step:
        """The experience of step `state.global_step`, counted from 0.

        ahead: whether the next step may be sampled before the update of this one; only `Ahead`
        does that.
        """
        step = self._step(self._first_round(state), state)
        self.prompts_state = self.prompts.state_dict()
        return step

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

    def _round(self, drawn: Sequence[Group], state: RunState) -> Round:
        """Play this process's share of the groups, and begin to score it."""
        with self.clock.time("sample"):
            self.sampler.begin(state.global_step)
            self.sampler.follow(self.samples_with, state.global_step)
            parts = self.sampler.draw(drawn)
        return self._begun(drawn, parts, state)

    def _begun(
        self, drawn: Sequence[Group], parts: Iterator[Sequence[Group]], state: RunState
    ) -> Round:
        """Begin to score each part as soon as it is sampled.

        Plain rewards are called before the next part is sampled, so that the facts' tensors of
        one part at a time are on the device.
        """
        played: list[Group] = []
        scorings: list[Scoring] = []
        while True:
            with self.clock.time("sample"):
                part = next(parts, None)
            if part is None:
                return Round(drawn=drawn, played=played, scorings=scorings)
            calls = [call for group in part for call in group.judged]
            with self.clock.time("reward"):
                scoring = self.scorer.start(judged(calls, self.sampler.columns), state)
                self.sampler.move_facts(part)
                if self.calls_at_once:
                    scoring.call()
            played += part
            scorings.append(scoring)

    @property
    def calls_at_once(self) -> bool:
        """Whether plain rewards of a part are called before the next one is sampled."""
        return True

    # ---- scoring and refilling

    def _step(self, first: Round, state: RunState) -> Step:
        """The groups of a step, judged; those that teach nothing are replaced.

        Whether one does is decided among those that would be trained on with it, since an algorithm
        may compare a group with the rest. Those of the last round stay: they count in the
        denominators of the loss.
        """
        self.failures = {}
        step = self._finished(first)
        step.dummies = self._dummies(step)
        self._drop_dummies(first, step)
        dead, metrics = self._described(step)
        refilled = 0
        for _ in range(self.settings.max_refills if self.refills else 0):
            missing = processes.total(len(dead))
            if not missing:
                break
            more = self._round(self.prompts.take(missing), state)
            fresh = self._finished(more)
            self._drop_dummies(more, fresh)
            kept = [group for group in step.groups if group.number not in dead]
            step = replace(step, groups=kept)
            like = Scores.concat([step.scores, fresh.like])
            step = replace(step, groups=[*kept, *fresh.groups], like=like)
            dead = self._without_signal(self._views(step), step)
            metrics = step_metrics.with_round(metrics, self._counted(fresh))
            refilled += missing
        if self.refills:
            metrics["refilled_groups"] = refilled
        step.metrics = metrics
        return step

    def _finished(self, begun: Round) -> Step:
        """The groups of a round, judged; waits for the rewards."""
        with self.clock.time("reward"):
            scores = self.scorer.finish(begun.scorings)
        step = Step(groups=begun.played, like=scores, sampler=self.sampler)
        for call, score in zip(step.judged, scores.rows, strict=True):
            call.first.score = score
        credit(step.groups, scores, self.sampler.refused)
        return step

    def _dummies(self, step: Step) -> dict[str, Rollouts | None]:
        """By label, a rollout for dummy passes if there are several processes; a failed one if all
        failed.

        Raises UserError, on all processes, if a policy of a chain has none on one of them.
        """
        labels = self.sampler.labels
        if self.accelerator.num_processes == 1:
            return dict.fromkeys(labels)
        processes.each(lambda: failures.check_not_empty(step.groups, labels))
        return {label: _dummy(step.firsts(label)) for label in labels}

    def _drop_dummies(self, begun: Round, step: Step) -> None:
        """Leave nothing if this process has no share of the groups, so that all are dummies."""
        if not self.sampler.share(begun.drawn):
            step.groups, step.like = [], step.like.select(torch.empty(0, dtype=torch.int64))

    def _views(self, step: Step) -> dict[str, View]:
        """By label, the rollouts of a player."""
        firsts = {label: step.firsts(label) for label in self.sampler.labels}
        return {label: (light(own), scores_of(own, step.like)) for label, own in firsts.items()}

    def _no_signal(self, views: Mapping[str, View], step: Step) -> dict[str, Tensor]:
        """By label of the learners, [B] bool: rollouts of groups without a training signal."""
        dead = {}
        for label, algorithm in self.algorithms.items():
            rest = step.rest(label)
            others = None if rest is None else (by_draw(rest), scores_of(rest, step.like))
            dead[label] = no_signal(*views[label], algorithm, rest=others)
        return dead

    def _without_signal(self, views: Mapping[str, View], step: Step) -> set[int]:
        """The numbers of this process's groups that teach no learner anything."""
        return self._dead(self._no_signal(views, step), step)

    def _dead(self, no_signal: Mapping[str, Tensor], step: Step) -> set[int]:
        alive = {
            first.episode.group.number
            for label, dead in no_signal.items()
            for first, is_dead in zip(step.firsts(label), dead.tolist(), strict=True)
            if not is_dead
        }
        of_players = (first for label in self.sampler.labels for first in step.firsts(label))
        return {first.episode.group.number for first in of_players} - alive

    # ---- metrics

    def _described(self, step: Step) -> tuple[set[int], dict[str, Any]]:
        """The numbers of groups that teach nothing, and the metrics of the first round."""
        views = self._views(step)
        dead = self._no_signal(views, step)
        rollouts = step.rollouts
        each = [
            own if self.sampler.plain else no_signal(rollouts, step.like, self.algorithms[label])
            for label, own in dead.items()
        ]
        judged_dead = torch.stack(each).all(dim=0) if each else None
        metrics = self._measured(step, rollouts, views, dead, judged_dead)
        return self._dead(dead, step), metrics

    def _counted(self, step: Step) -> dict[str, Any]:
        """The metrics of a further round, of which only counts are used."""
        return self._measured(step, step.rollouts, self._views(step), {}, None)

    def _measured(
        self,
        step: Step,
        rollouts: Rollouts,
        views: Mapping[str, View],
        no_signal: Mapping[str, Tensor],
        judged_without: Tensor | None,
    ) -> dict[str, Any]:
        """Metrics of a round.

        rollouts: those that are judged; no_signal: by label, [B] bool of those that teach it
        nothing; judged_without: [B] bool, the same of judged ones, None for a further round.
        """
        scores, labels = step.like, self.sampler.labels
        described = failures.described(step.groups, labels)
        self.failures |= processes.first_of({**described, **scores.failures})
        right = self.judge.right(scores).masked_fill(scores.failed, math.nan)
        episodes = [episode for group in step.groups for episode in group.episodes]
        lost = sum(episode.is_lost for episode in episodes)
        metrics = step_metrics.describe(
            rollouts,
            scores,
            no_signal=judged_without,
            right=right if self.judge.name in scores.names else None,
            logged=self.sampler.logged,
            lost=lost,
            multi_turn=self.sampler.environment.multi_turn,
            columns=self.sampler.logged_columns,
            turns=turns.counted(episodes),
        )
        firsts = (first for label in labels for first in step.firsts(label))
        metrics |= turn_rewards.measured(firsts).of_all_processes().result()
        if isinstance(self.prompts, Weighted):
            metrics |= self.prompts.observe(step_metrics.outcomes(rollouts, right))
        if len(labels) == 1:
            return metrics
        logged = {label: s.policy.logged for label, s in self.sampler.samplings.items()}
        return metrics | step_metrics.of_learners(views, no_signal, logged, lost)


def _dummy(firsts: Sequence[Call]) -> Rollouts:
    """The longest rollout, of those that did not fail if there are any."""
    usable = [first for first in firsts if first.score is None or not first.score.failed]
    extents = light(usable or firsts).extents
    return gather([(usable or firsts)[int(extents.argmax())]])
