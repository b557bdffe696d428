"""Chosen: the completions of a training step that are kept: the extremes, and an unbiased one."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from groupwise.evaluation import Sample
from groupwise.experience.accuracy import Accuracy
from groupwise.experience.step import Step
from groupwise.rewards import Scores
from groupwise.samples.samples import Samples

EXTREMES = {
    "best": lambda sample: (sample["total"] is None, -(sample["total"] or 0.0)),
    "worst": lambda sample: (sample["total"] is None, sample["total"] or 0.0),
    "longest": lambda sample: -sample["length"],
}
"""By name, what the first in this order is, ties in the order of the step; none where all are
equal, as the lengths of pictures."""


def chosen(step: Step, accuracy: Accuracy, *, most: int) -> list[Sample]:
    """The records of at most so many completions of a step, in the order of the step.

    Each has the words for which it was `chosen`, its `advantage`, None if it was not trained on,
    and mean and std of the rewards in its `group`. In the order of precedence: a sample that
    failed, the extremes, the first of the step (an unbiased one), the next ones. A collective.
    """
    scores, lengths = step.scores, [call.rollout.length for call in step.judged]
    rows = _candidates(scores, lengths, most)
    ours = [
        {**sample, "advantage": _plain(step.judged[row].rollout.advantage), "group": group}
        for row, sample, group in zip(
            rows, _records(step, scores, accuracy, rows), _groups(step, scores, rows), strict=True
        )
    ]
    return _selected(gather_object(ours), most)


def _selected(samples: Sequence[Sample], most: int) -> list[Sample]:
    """At most so many of these, with the words for which each is chosen."""
    samples = sorted(samples, key=_place)
    words: dict[int, list[str]] = {}
    failed = [number for number, sample in enumerate(samples) if "failed" in sample]
    whole = [number for number, sample in enumerate(samples) if "failed" not in sample]
    named = [(number, "failed") for number in failed[:1]]
    for word, order in EXTREMES.items():
        places = {number: order(samples[number]) for number in whole}
        if len({*places.values()}) > 1:
            named.append((min(whole, key=places.__getitem__), word))
    named += [(number, "next" if number else "first") for number in range(len(samples))]
    for number, word in named:
        if number in words and word != "next":
            words[number].append(word)
        elif len(words) < most:
            words.setdefault(number, [word])
    return [{**samples[number], "chosen": words[number]} for number in sorted(words)]


def _candidates(scores: Scores, lengths: Sequence[int], most: int) -> list[int]:
    """The rows of this process that may be chosen: its own extremes, and its first ones."""
    totals, failed = scores.total, scores.failed
    rows = [*range(min(most, len(totals))), *failed.nonzero().flatten().tolist()[:1]]
    for values in (totals, -totals, torch.tensor(lengths).double()):
        known = values.masked_fill(failed | values.isnan(), -math.inf)
        rows += [int(known.argmax())] if len(known) else []
    return sorted({*rows})


def _records(
    step: Step, scores: Scores, accuracy: Accuracy, rows: Sequence[int]
) -> list[dict[str, Any]]:
    """The records of these judged rollouts, as evaluations have them."""
    right = accuracy.right(scores).masked_fill(scores.failed, math.nan)
    sampler, judged = step.sampler, step.judged
    several = len(sampler.samplings) > 1
    records: dict[int, Any] = {}
    for label, sampling in sampler.samplings.items():
        own = [row for row in rows if judged[row].label == label]
        samples = Samples(
            greedy=False,
            learner=label if several else "",
            multi_turn=sampler.environment.multi_turn,
        )
        of_player = samples.of_judged(
            [judged[row] for row in own],
            scores.select(torch.tensor(own, dtype=torch.int64)),
            None,
            right[own],
            sampling.policy,
            returned=sampler.columns,
            shown=sampler.shown_columns,
        )
        records |= zip(own, of_player, strict=True)
    return [records[row] for row in rows]


def _groups(
    step: Step, scores: Scores, rows: Sequence[int]
) -> Sequence[Mapping[str, float | None]]:
    """Mean and std of the rewards in the group of each of these rows, without failed ones."""
    groups = torch.tensor([call.episode.group.number for call in step.judged])
    described = []
    for row in rows:
        of_group = scores.total[groups == groups[row]]
        of_group = of_group[~of_group.isnan()]
        mean = float(of_group.mean()) if len(of_group) else math.nan
        std = float(of_group.std()) if len(of_group) > 1 else math.nan
        described.append({"mean": _plain(mean), "std": _plain(std)})
    return described


def _plain(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _place(sample: Sample) -> tuple[int, str, int]:
    return sample["draw"], sample.get("learner", ""), sample["index"]
