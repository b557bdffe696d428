"""Experience: the judged groups of a step, with those that teach nothing replaced."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.episodes import turn_rewards, turns
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.experience import failures
from groupwise.experience.accuracy import Accuracy
from groupwise.experience.ledger import Draw
from groupwise.experience.signal import no_signal
from groupwise.experience.step import Step
from groupwise.experience.stream import Stream
from groupwise.kit import processes
from groupwise.kit.metric_names import Family
from groupwise.metrics import step_metrics
from groupwise.metrics.tally import Tally
from groupwise.prompts.draws import Prompts
from groupwise.record import Group, Rollout
from groupwise.record.gather import by_draw, gather, light, moved, scores_of
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer


class Experience(Stream):
    """Yields the judged groups of one step after the other.

    Async and isolated rewards score a batch while the next one is sampled.

    Its state is the position in the prompts. algorithms: by label of the learner; failures: by
    cause (a reward, or `/POLICY`), a sentence on a completion of the last step that failed, on any
    process.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        prompts: Prompts,
        scorer: Scorer,
        accuracy: Accuracy,
        *,
        algorithms: Mapping[str, Algorithm],
        **settings: Any,
    ) -> None:
        """settings: as of `Stream`."""
        with_weights = {label: a.samples_with for label, a in algorithms.items()}
        super().__init__(sampler, prompts, scorer, samples_with=with_weights, **settings)
        self.accuracy, self.algorithms = accuracy, algorithms
        self.refills = any(algorithm.refills for algorithm in algorithms.values())
        self.failures: dict[str, str] = {}

    def next(self, state: RunState) -> Step:
        """The experience of step `state.global_step`, counted from 0: its groups, judged; those
        that teach nothing are replaced.

        Whether one does is decided among those that would be trained on with it, since an algorithm
        may compare a group with the rest. Those of the last round stay: they count in the
        denominators of the loss.
        """
        self.end_step()
        self.failures = {}
        draws, step = self.take(self.settings.groups_per_step, state)
        taken = [*draws]
        step = replace(step, dummies=self._dummies(step))
        no_signal = self._no_signal(step)
        metrics, refilled = self._described(step, draws, no_signal), 0
        for _ in range(self.settings.max_refills if self.refills else 0):
            kept, replaced = _by_signal(step, no_signal)
            numbers = gather_object([group.number for group in replaced])
            if not numbers:
                break
            for group in replaced:
                group.release()
            self.ledger.give_up(numbers)
            draws, fresh = self.take(len(numbers), state)
            taken += draws
            left = [call.rollout for group in kept for call in group.judged]
            scores = Scores.concat([scores_of(left, step.scores), fresh.scores])
            step = replace(step, groups=[*kept, *fresh.groups], scores=scores)
            no_signal = self._no_signal(step)
            metrics = step_metrics.with_round(metrics, self._described(fresh, draws, {}))
            refilled += len(numbers)
        if self.refills:
            metrics["refilled_groups"] = refilled
        step.metrics = metrics | self._staleness(step, taken, state)
        return step

    def _staleness(self, step: Step, draws: Sequence[Draw], state: RunState) -> dict[str, float]:
        """How many training steps before this one the weights are from that began its draws, and
        that drew its decisions."""
        if not self.ahead:
            return {}
        steps = [state.global_step - draw.version for draw in draws]
        mean, most = sum(steps) / len(steps), float(max(steps))
        own, decisions = Tally(), f"{Family.STALENESS}/decisions"
        for rollout in (each for label in self.algorithms for each in step.rollouts_of(label)):
            for version, count in rollout.spans:
                own.mean(decisions, (state.global_step - version) * count, count)
        return {
            f"{Family.STALENESS}/mean": mean,
            f"{Family.STALENESS}/max": most,
            **own.of_all_processes().result(),
        }

    def state_dict(self) -> dict[str, Any]:
        return self.prompts.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.close()
        self.prompts.load_state_dict(state)
        self.sampler.forget()

    def _dummies(self, step: Step) -> dict[str, Rollouts | None]:
        """By label, a rollout for dummy passes if there are several processes: a failed one if all
        failed, another process's if this one has none; None if no process has any."""
        labels = self.sampler.labels
        if self.accelerator.num_processes == 1:
            return dict.fromkeys(labels)
        own = {label: _dummy(step.rollouts_of(label)) for label in labels}
        device = self.accelerator.device
        return {label: _of_any_process(dummy, device) for label, dummy in own.items()}

    def _no_signal(self, step: Step) -> dict[str, Tensor]:
        """By label of the learners, [B] bool: rollouts of groups without a training signal."""
        dead = {}
        for label, algorithm in self.algorithms.items():
            rest = step.rest(label)
            others = None if rest is None else (by_draw(rest), scores_of(rest, step.scores))
            dead[label] = no_signal(*step.views[label], algorithm, rest=others)
        return dead

    def _judged_without(self, step: Step, dead: Mapping[str, Tensor]) -> Tensor | None:
        """[B] bool: judged rollouts that teach nothing, compared with those of the same draw."""
        each = [
            own
            if self.sampler.plain
            else no_signal(step.rollouts, step.scores, self.algorithms[label])
            for label, own in dead.items()
        ]
        return torch.stack(each).all(dim=0) if each else None

    def _described(
        self, step: Step, draws: Sequence[Draw], dead: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Metrics of a round; draws: of all processes; dead: by label, the rollouts without a
        signal, {} if it is a further round, which adds only counts."""
        scores, labels = step.scores, self.sampler.labels
        described = failures.described(step.groups, labels)
        self.failures |= processes.first_of({**described, **scores.failures})
        right = self.accuracy.right(scores).masked_fill(scores.failed, math.nan)
        episodes = [episode for group in step.groups for episode in group.episodes]
        lost = sum(episode.is_lost for episode in episodes)
        sampled = [rollout for label in labels for rollout in step.rollouts_of(label)]
        metrics = step_metrics.describe(
            step.rollouts,
            scores,
            no_signal=self._judged_without(step, dead),
            right=right if self.accuracy.name in scores.names else None,
            logged=self.sampler.logged,
            lost=lost,
            multi_turn=self.sampler.environment.multi_turn,
            columns=self.sampler.logged_columns,
            turns=turns.counted(episodes),
            decisions=sum(rollout.length for rollout in sampled),
            sources=[call.episode.group.source for call in step.judged],
        )
        metrics |= turn_rewards.measured(sampled).of_all_processes().result()
        if self.prompts.observes:
            outcomes = step_metrics.outcomes(step.rollouts, right)
            metrics |= self.prompts.observe(outcomes, [draw.number for draw in draws])
        if len(labels) == 1:
            return metrics
        logged = {label: s.policy.logged for label, s in self.sampler.samplings.items()}
        return metrics | step_metrics.of_learners(step.views, dead, logged, lost)


def _by_signal(step: Step, dead: Mapping[str, Tensor]) -> tuple[list[Group], list[Group]]:
    """The groups of a step that stay, and those with rollouts that teach no learner anything."""
    alive, drawn = set[int](), set[int]()
    for label in step.sampler.labels:
        numbers = [rollout.draw for rollout in step.rollouts_of(label)]
        drawn |= {*numbers}
        if label in dead:
            pairs = zip(numbers, dead[label].tolist(), strict=True)
            alive |= {number for number, is_dead in pairs if not is_dead}
    replaced = [group for group in step.groups if group.number in drawn - alive]
    return [group for group in step.groups if group.number not in drawn - alive], replaced


def _dummy(rollouts: Sequence[Rollout]) -> Rollouts | None:
    """The longest rollout, of those that did not fail if there are any; None without any."""
    if not rollouts:
        return None
    usable = [rollout for rollout in rollouts if not rollout.failed]
    extents = light(usable or rollouts).extents
    return gather([(usable or rollouts)[int(extents.argmax())]])


def _of_any_process(dummy: Rollouts | None, device: torch.device) -> Rollouts | None:
    """A process's own dummy, else that of another one. A collective."""
    if not processes.any_process(dummy is None):
        return dummy
    shared = gather_object([None if dummy is None else moved(dummy, torch.device("cpu"))])
    others = [other for other in shared if other is not None]
    return dummy if dummy is not None or not others else moved(others[0], device)
