"""Evaluator: held-out prompts with the same seeds every time, so that evaluations compare."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from accelerate.utils import gather_object

from groupwise import processes
from groupwise.config.measures import WatchSection
from groupwise.config.sections import EvaluationSection
from groupwise.evaluation import Evaluation, Sample
from groupwise.prompts.draws import Draw
from groupwise.rewards import RunState, Scores
from groupwise.sampler import Purpose
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.scoring import Scoring
from groupwise.training.alarm import Alarms
from groupwise.training.episode_sampler import EpisodeSampler
from groupwise.training.episodes import Episodes, Refusal
from groupwise.training.judge import Judge
from groupwise.training.references import References
from groupwise.training.samples import Samples
from groupwise.training.summary import joined, summarise

OF_EACH = ("accuracy", "greedy_accuracy", "reward", "length")
"""Metrics that are also logged per policy if several are evaluated."""


class Evaluator:
    """Samples `samples` completions for each held-out prompt, and a greedy one, and scores them.

    Async and isolated rewards score a batch while the next is sampled. All processes must call it.

    distinct: the number of different questions among the draws; watched: rewards that are only
    measured at evaluations; watches: for each of them, what counts as worse; judge: decides which
    completions are right; references: what relative rewards compare with, None if there are no such
    rewards; failures: by cause (a reward, or `/POLICY`), a sentence on a completion
    that failed, on any process.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        draws: Sequence[Draw],
        rewards: Scorer,
        settings: EvaluationSection,
        judge: Judge,
        *,
        distinct: int,
        watched: Scorer | None,
        watches: Mapping[str, WatchSection],
    ) -> None:
        self.draws, self.distinct = draws, distinct
        self.judge = judge
        self.sampler, self.rewards, self.settings = sampler, rewards, settings
        self.watched = watched
        self.alarms = Alarms(watches)
        measures = [*rewards.rewards, *(watched.rewards if watched else ())]
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
        watched = self.watched.names if self.watched else ()
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
                judged=self.judge.name is not None,
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
        self, draws: Sequence[Draw], size: int, state: RunState, *, space: str, greedy: bool
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
        self, draws: Sequence[Draw], size: int, state: RunState, *, space: str, greedy: bool
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
                for sampled in self.sampler.evaluate(cast, draws, count, purpose, space=space):
                    # No forward pass follows, so the trajectory can be freed.
                    light = replace(sampled, judged=replace(sampled.judged, trajectory={}))
                    del sampled  # else this frame holds it while the next one is sampled
                    yield self._begun(light, state, greedy=purpose == "greedy", learner=cast)
                    del light

    def _begun(self, sampled: Episodes, state: RunState, *, greedy: bool, learner: str) -> "_Batch":
        """Begin to score a batch; calls its plain rewards, which frees the facts' tensors."""
        rollouts, references = sampled.judged, None
        if self.references is not None:
            if not (state.global_step or greedy):  # the first evaluation compares with itself
                self.references.keep(rollouts, learner)
            references = self.references.of(rollouts, learner)
        purpose: Purpose = "greedy" if greedy else "evaluate"
        start = partial(Scorer.start, purpose=purpose, references=references)
        rewards = start(self.rewards, rollouts, state)
        watched = start(self.watched, rollouts, state) if self.watched else None
        for scoring in filter(None, (rewards, watched)):
            scoring.call()
        return _Batch(
            sampled=replace(sampled, judged=rewards.rollouts),
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
        self.failures |= {**batch.sampled.failures, **scores.failures, **of_watched}
        is_watched = watched is not None and self.judge.name in watched.names
        judged = watched if watched is not None and is_watched else scores
        right = self.judge.right(judged).masked_fill(scores.failed, math.nan)
        sampled, samples = batch.sampled, batch.samples
        policy = self.sampler.samplings[samples.learner or self.sampler.judged[-1]].policy
        return [
            *samples.of_judged(
                sampled,
                scores,
                watched,
                right,
                policy,
                returned=self.sampler.columns,
                shown=self.sampler.shown_columns,
            ),
            *(self._refused(samples, refusal) for refusal in sampled.refusals),
        ]

    def _refused(self, samples: Samples, refusal: Refusal) -> Sample:
        """The record of a completion that the next policy of a chain could not take."""
        names, watched = self.rewards.names, self.watched.names if self.watched else None
        failed = torch.tensor([refusal.failure is not None])
        values = torch.full((1, len(names)), refusal.value, dtype=torch.float64)
        values = values.masked_fill(failed, math.nan)
        scores = Scores(
            names=names, weights=self.rewards.weights.final, values=values, failed=failed
        )
        wrong = torch.zeros(1).masked_fill(failed, math.nan)
        is_watched = self.judge.name in (watched or ())
        right = wrong if is_watched else self.judge.right(scores)
        return samples.of_refusal(refusal, scores, right, watched)


def _place(sample: Sample) -> tuple[bool, int, str, int]:
    return sample["greedy"], sample["draw"], sample.get("learner", ""), sample["index"]


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """A sampled batch that is being scored; samples: makes its records."""

    sampled: Episodes
    rewards: Scoring
    watched: Scoring | None
    samples: Samples
