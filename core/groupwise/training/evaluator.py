"""Evaluator: held-out prompts, the same seeds every time, so that before and after compare."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import gather_object

from groupwise import processes
from groupwise.config.sections import EvaluationSection
from groupwise.evaluation import Alarm, Evaluation, Sample
from groupwise.prompts.draws import Draw
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.scoring import Scoring
from groupwise.training.alarm import Watch, alarms
from groupwise.training.judge import Judge
from groupwise.training.sampling import Sampling


class Evaluator:
    """Samples `samples` completions for each held-out prompt, and a greedy one, and scores them.

    Async rewards and isolated ones score a batch while the next is sampled. It is called by all
    processes alike.

    distinct: different questions among the draws; watched: rewards that are measured here and
    nowhere else; watches: how each is judged; judge: which completions are right; failures: by
    reward, why it failed last and was skipped, on any process.
    """

    def __init__(
        self,
        sampling: Sampling,
        draws: Sequence[Draw],
        rewards: Scorer,
        settings: EvaluationSection,
        *,
        distinct: int | None = None,
        watched: Scorer | None = None,
        watches: Mapping[str, Watch] | None = None,
    ) -> None:
        self.draws, self.count = draws, len(draws)
        self.distinct = len(draws) if distinct is None else distinct
        self.judge = Judge(settings, rewards.rewards[0])
        self.sampling, self.rewards, self.settings = sampling, rewards, settings
        self.watched, self.watches = watched, watches or {}
        self.first: Sequence[Sample] | None = None
        self.alarms: Mapping[str, Alarm | None] = {}
        self.failures: dict[str, str] = {}

    def __call__(self, state: RunState, weights: str | None = None) -> Evaluation:
        """weights: the name of those that are evaluated, None for the policy's present ones."""
        self.sampling.follow(weights, state.global_step)
        samples: list[Sample] = gather_object([*self._samples(state)])
        self.failures = processes.first_of(self.failures)
        samples.sort(key=lambda sample: (sample["greedy"], sample["draw"], sample["index"]))
        self.judge.agree()
        if self.judge.measures:  # which a later batch may have shown
            samples = [{**sample, "right": None} for sample in samples]
        watched = self.watched.names if self.watched else ()
        metrics = summarise(
            samples,
            self.rewards.names,
            self.settings.samples,
            watched,
            judged=not self.judge.measures,
        )
        if metrics and self.distinct != self.count:
            metrics["distinct_prompts"] = float(self.distinct)
        self._compare(samples)
        return Evaluation(metrics, samples, self.alarms)

    def remember(self, samples: Sequence[Sample]) -> None:
        """Take these for the first evaluation, which later ones are compared with."""
        kept = ("draw", "index", "greedy", "total", "watched")
        self.first = [{name: sample.get(name) for name in kept} for sample in samples]

    def _compare(self, samples: Sequence[Sample]) -> None:
        if self.first is None:
            self.remember(samples)
        elif samples:
            self.alarms = alarms(self.first, samples, self.watches)

    def _samples(self, state: RunState) -> Iterator[Sample]:
        """All samples of this process, in the order in which they are drawn."""
        before: _Batch | None = None
        for batch in self._batches(state):
            if before is not None:  # waited for only when the next is drawn
                yield from self._scored(before)
            before = batch
        if before is not None:
            yield from self._scored(before)

    def _batches(self, state: RunState) -> Iterator["_Batch"]:
        """What is sampled; the scoring of it has begun."""
        both = self.settings.greedy and self.sampling.policy.greedy
        sizes: dict[Purpose, int] = {
            "evaluate": self.settings.samples,
            **({"greedy": 1} if both else {}),
        }
        for purpose, size in sizes.items():
            drawn = self.sampling.draw(self.draws, size, space="evaluation", purpose=purpose)
            for rollouts in drawn:
                # Nothing is learned from them, so what a policy needs for that can go.
                light = replace(rollouts, trajectory={})
                yield _Batch(
                    rollouts=light,
                    rewards=self.rewards.start(light, state, weights=self.rewards.weights.final),
                    watched=self.watched.start(light, state) if self.watched else None,
                    size=size,
                    greedy=purpose == "greedy",
                )

    def _scored(self, batch: "_Batch") -> list[Sample]:
        scores, watched = self.rewards.finish([batch.rewards]), None
        if self.watched is not None and batch.watched is not None:
            watched = self.watched.finish([batch.watched])
        self.failures |= {**scores.failures, **(watched.failures if watched else {})}
        is_watched = watched is not None and self.settings.accuracy in watched.names
        judged = watched if watched is not None and is_watched else scores
        self.judge.look(judged)
        right = self.judge.right(judged)
        return _records(batch.rollouts, scores, watched, right, batch.size, greedy=batch.greedy)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """What was sampled together, `size` completions of each prompt, and is being scored."""

    rollouts: Rollouts
    rewards: Scoring
    watched: Scoring | None
    size: int
    greedy: bool


def _records(
    rollouts: Rollouts,
    scores: Scores,
    watched: Scores | None,
    right: torch.Tensor,
    size: int,
    *,
    greedy: bool,
) -> list[Sample]:
    said = {**scores.extra, **(watched.extra if watched else {})}
    extra = {name: v for name, v in said.items() if len(v) == len(rollouts)}
    return [
        {
            "prompt": rollouts.prompts[row]["prompt"],
            "completion": rollouts.completions[row],
            "rewards": _values(scores, row),
            "total": _or_none(float(scores.total[row])),
            **({"watched": _values(watched, row)} if watched else {}),
            "right": None if right[row].isnan() else bool(right[row]),
            "truncated": bool(rollouts.truncated[row]),
            "greedy": greedy,
            "draw": int(rollouts.groups[row]),
            "index": row % size,
            "length": int(rollouts.lengths[row]),
            # What rewards gave to TRL's `log_extra`, in words where it is no JSON.
            **({"extra": {k: _plain(v[row]) for k, v in extra.items()}} if extra else {}),
        }
        for row in range(len(rollouts))
    ]


def _values(scores: Scores, row: int) -> dict[str, float | None]:
    values = map(_or_none, scores.values[row].tolist())
    return dict(zip(scores.names, values, strict=True))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def summarise(
    samples: Sequence[Sample],
    names: Sequence[str],
    size: int,
    watched: Sequence[str] = (),
    *,
    judged: bool = True,
) -> dict[str, float]:
    """accuracy, greedy_accuracy, pass_at_k, length, truncated and the mean of every reward.

    judged: False where no reward tells right from wrong: `greedy_reward` then stands for all that
    would need it.
    """
    drawn = [sample for sample in samples if not sample["greedy"]]
    greedy = [sample for sample in samples if sample["greedy"]]
    if not drawn:
        return {}
    metrics = {
        "prompts": float(len({sample["draw"] for sample in drawn})),
        **({"accuracy": _mean([sample["right"] for sample in drawn])} if judged else {}),
        "reward": _mean([sample["total"] for sample in drawn]),
        "length": _mean([sample["length"] for sample in drawn]),
        "truncated": _mean([sample["truncated"] for sample in drawn]),
    }
    if not metrics["length"]:
        del metrics["length"]  # a policy that decides nothing when it is evaluated
    if greedy and judged:
        metrics["greedy_accuracy"] = _mean([sample["right"] for sample in greedy])
    elif greedy:
        metrics["greedy_reward"] = _mean([sample["total"] for sample in greedy])
    unscored = sum(sample["right" if judged else "total"] is None for sample in drawn)
    if unscored:
        metrics["unscored"] = float(unscored)
    for name in names:
        metrics[f"rewards/{name}"] = _mean([sample["rewards"][name] for sample in drawn])
    for name in watched:
        metrics[f"watch/{name}"] = _mean([sample["watched"][name] for sample in drawn])
    return metrics | (_pass_at_all(drawn, size) if judged else {})


def _pass_at_all(drawn: Sequence[Sample], size: int) -> dict[str, float]:
    """pass_at_k for every power of two, over the prompts whose completions were all scored."""
    answers: dict[int, list[bool | None]] = {}
    for sample in drawn:
        answers.setdefault(sample["draw"], []).append(sample["right"])
    right = [sum(map(bool, said)) for said in answers.values() if None not in said]
    powers = (2**n for n in range(1, size.bit_length()))
    return {f"pass_at_{k}": _mean([pass_at(k, size, correct) for correct in right]) for k in powers}


def pass_at(k: int, samples: int, correct: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that one of k draws is right, unbiased from n samples.

    Chen et al., "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, eq. 1.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _mean(values: Sequence[float | None]) -> float:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return float(sum(known)) / len(known) if known else math.nan
