"""Evaluator: held-out prompts with the same seeds every time, so that evaluations compare."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from accelerate.utils import gather_object

from groupwise.config.sections import EvaluationSection
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.evaluation import Evaluation, Sample
from groupwise.evaluator.alarm import Alarms, Limits
from groupwise.evaluator.references import References
from groupwise.evaluator.summary import joined, summarise
from groupwise.evaluator.watches import DefaultWatches
from groupwise.experience import failures
from groupwise.experience.accuracy import Accuracy
from groupwise.kit import processes
from groupwise.record import Call, Episode, Group
from groupwise.record.gather import judged
from groupwise.rewards import RunState, Scores
from groupwise.sampler import Purpose
from groupwise.samples.samples import Samples
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.scoring import Scoring

OF_EACH = ("accuracy", "greedy_accuracy", "reward", "length")
"""Metrics that are also logged per policy if several are evaluated."""


class Evaluator:
    """Samples `samples` completions for each held-out prompt, and a greedy one, and scores them.

    Async and isolated rewards score a batch while the next is sampled. All processes must call it.

    distinct: the number of different questions among the draws; watched: rewards that are only
    measured at evaluations; watches: for each of them, what counts as worse; defaults: what is
    watched without being named; accuracy: which completions are right; references: what
    relative rewards compare with, None if there are no such rewards; failures: by cause (a reward,
    or `/POLICY`), a sentence on a completion that failed, on any process.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        draws: Sequence[Group],
        rewards: Scorer,
        settings: EvaluationSection,
        accuracy: Accuracy,
        *,
        distinct: int,
        watched: Scorer | None,
        watches: Mapping[str, Limits],
    ) -> None:
        self.draws, self.distinct = draws, distinct
        self.accuracy = accuracy
        self.sampler, self.rewards, self.settings = sampler, rewards, settings
        self.watched = watched
        measures = [*rewards.rewards, *(watched.rewards if watched else ())]
        names = [reward.name for reward in measures]
        self.defaults = DefaultWatches(names if settings.default_watches else None)
        self.alarms = Alarms({**watches, **self.defaults.watches})
        relative = any(reward.members.relative for reward in measures)
        self.references = References() if relative else None
        self.failures: dict[str, str] = {}

    def __call__(
        self, state: RunState, weights: Mapping[str, str | None] | None = None
    ) -> Evaluation:
        """weights: by learner, the name of the kept weights to evaluate; None: the current ones."""
        self.sampler.follow(weights or {}, state.global_step)
        self.failures = {}
        settings = self.settings
        drawn = self.samples(
            self.draws, settings.samples, state, space="evaluation", greedy=settings.greedy
        )
        samples: list[Sample] = gather_object([*drawn])
        self.failures = processes.first_of(self.failures)
        samples.sort(key=_place)
        if self.references is not None and not state.global_step:
            self.references.remember(samples)  # as a resumed run does
        watched = (
            *(self.watched.names if self.watched else ()),
            *self.defaults.applied(samples),
        )
        metrics = self._summary(samples, watched)
        if metrics and self.distinct != len(self.draws):
            metrics["distinct_prompts"] = float(self.distinct)
        self.alarms.observe(samples, state.global_step)
        return Evaluation(metrics, samples, self.alarms.raised)

    def _summary(self, samples: Sequence[Sample], watched: Sequence[str]) -> dict[str, float]:
        """The metrics; of several policies the means over them, sums of counts, and some metrics of
        each, such as `accuracy/NAME`.
        """
        each = {
            name: summarise(
                [sample for sample in samples if sample.get("learner", "") == name],
                self.rewards.names,
                self.settings.samples,
                watched,
                columns=self.sampler.logged_columns,
                judged=self.accuracy.name is not None,
            )
            for name in self.sampler.casts
        }
        if len(each) == 1:
            return next(iter(each.values()))
        of_each = {
            f"{metric}/{name}": metrics[metric]
            for metric in OF_EACH
            for name, metrics in each.items()
            if metric in metrics
        }
        return joined([*each.values()]) | of_each

    def samples(
        self, draws: Sequence[Group], size: int, state: RunState, *, space: str, greedy: bool
    ) -> Iterator[Sample]:
        """`size` scored and judged completions for each draw of this process's share.

        They are sampled with the weights that samplers follow; in a pool, by each policy. space:
        name space of the seeds, as in `Sampling.draw`; greedy: also sample a greedy completion, if
        there is a greedy mode.
        """
        previous: _Batch | None = None
        for batch in self._batches(draws, size, state, space=space, greedy=greedy):
            if previous is not None:  # its async rewards ran while this batch was sampled
                yield from self._scored(previous)
            previous = batch
        if previous is not None:
            yield from self._scored(previous)

    def _batches(
        self, draws: Sequence[Group], size: int, state: RunState, *, space: str, greedy: bool
    ) -> Iterator["_Batch"]:
        """Sampled batches whose scoring has begun."""
        due: dict[str, dict[Purpose, int]] = {}
        for cast in self.sampler.casts:
            due[cast] = {"evaluate": size}
            if greedy and self.sampler.greedy(cast):
                due[cast]["greedy"] = 1
        each = sum(count for sizes in due.values() for count in sizes.values())
        self.sampler.expect(each * len(self.sampler.share(draws)))
        for cast, sizes in due.items():
            for purpose, count in sizes.items():
                for groups in self.sampler.evaluate(cast, draws, count, purpose, space=space):
                    yield self._begun(groups, state, greedy=purpose == "greedy", learner=cast)

    def _begun(
        self, groups: Sequence[Group], state: RunState, *, greedy: bool, learner: str
    ) -> "_Batch":
        """Begin to score a batch; calls its plain rewards, which frees the facts' tensors."""
        calls, references = [call for group in groups for call in group.judged], None
        rollouts = judged(calls, self.sampler.columns)
        if self.references is not None:
            if not (state.global_step or greedy):  # the first evaluation compares with itself
                self.references.keep(rollouts, learner)
            references = self.references.of(rollouts, learner)
        purpose: Purpose = "greedy" if greedy else "evaluate"
        start = partial(Scorer.start, purpose=purpose, references=references)
        rewards = start(self.rewards, rollouts, state)
        watched = start(self.watched, rollouts, state) if self.watched else None
        self.sampler.move_facts(groups, rewards.rollouts)
        del rollouts
        for scoring in filter(None, (rewards, watched)):
            scoring.call()
        return _Batch(
            groups=groups,
            rewards=rewards,
            watched=watched,
            samples=Samples(
                greedy=greedy, learner=learner, multi_turn=self.sampler.environment.multi_turn
            ),
        )

    def _scored(self, batch: "_Batch") -> list[Sample]:
        scores, watched = self.rewards.finish([batch.rewards]), None
        if self.watched is not None and batch.watched is not None:
            watched = self.watched.finish([batch.watched])
        of_watched = watched.failures if watched else {}
        groups, samples = batch.groups, batch.samples
        described = failures.described(groups, self.sampler.labels)
        self.failures |= {**described, **scores.failures, **of_watched}
        is_watched = watched is not None and self.accuracy.name in watched.names
        of_accuracy = watched if watched is not None and is_watched else scores
        right = self.accuracy.right(of_accuracy).masked_fill(scores.failed, math.nan)
        policy = self.sampler.samplings[samples.learner or self.sampler.judged[-1]].policy
        episodes = [episode for group in groups for episode in group.episodes]
        records = [
            *samples.of_judged(
                [call for group in groups for call in group.judged],
                scores,
                watched,
                right,
                policy,
                returned=self.sampler.columns,
                shown=self.sampler.shown_columns,
            ),
            *(self._dead_end(samples, call) for call in failures.dead_ends(episodes)),
            *(self._dead_end(samples, episode) for episode in episodes if episode.is_lost),
        ]
        for group in groups:
            group.release()
        return [self.defaults.measured(record) for record in records]

    def _dead_end(self, samples: Samples, end: Call | Episode) -> Sample:
        """The record of a reply that failed or was refused, or of an episode without any."""
        if isinstance(end, Call) and end.rollout.failure is None:
            value, failed = self.sampler.refused[end.label], False
        else:
            value, failed = 0.0, True
        return samples.of_dead_end(end, *self._as_judged(value, failed=failed))

    def _as_judged(
        self, value: float, *, failed: bool
    ) -> tuple[Scores, torch.Tensor, Sequence[str] | None]:
        """The scores of one rollout with this value of each reward; whether it is right; and the
        names of watched rewards."""
        names, watched = self.rewards.names, self.watched.names if self.watched else None
        fails = torch.tensor([failed])
        values = torch.full((1, len(names)), math.nan if failed else value, dtype=torch.float64)
        scores = Scores(
            names=names, weights=self.rewards.weights.final, values=values, failed=fails
        )
        wrong = torch.zeros(1).masked_fill(fails, math.nan)
        is_watched = self.accuracy.name in (watched or ())
        return scores, wrong if is_watched else self.accuracy.right(scores), watched


def _place(sample: Sample) -> tuple[bool, int, str, int]:
    return sample["greedy"], sample["draw"], sample.get("learner", ""), sample["index"]


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """A sampled batch that is being scored; samples: makes its records."""

    groups: Sequence[Group]
    rewards: Scoring
    watched: Scoring | None
    samples: Samples
