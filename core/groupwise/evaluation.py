"""Evaluation: held-out prompts, the same seeds every time, so that before and after compare."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import gather_object

from groupwise.config import EvaluationSection
from groupwise.policy import Policy, Purpose
from groupwise.prompts import Draw, seed_for
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring import Rewards

Sample = Mapping[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """Metrics by name, and every evaluated completion as a JSON-ready record."""

    metrics: Mapping[str, float]
    samples: Sequence[Sample]


class Evaluator:
    """Samples `samples` completions for each held-out prompt, and a greedy one, and scores them."""

    def __init__(
        self,
        draws: Sequence[Draw],
        rewards: Rewards,
        settings: EvaluationSection,
        *,
        seed: int,
        batch: int,
        process: tuple[int, int] = (0, 1),
    ) -> None:
        rank, world = process
        self.draws, self.count = list(draws)[rank::world], len(draws)
        self.rewards, self.settings, self.seed, self.batch = rewards, settings, seed, batch

    def __call__(self, policy: Policy, state: RunState | None = None) -> Evaluation:
        sampled = self._score(policy, "evaluate", self.settings.samples, state)
        greedy = self._score(policy, "greedy", 1, state) if self.settings.greedy else []
        samples: list[Sample] = gather_object([*sampled, *greedy])
        samples.sort(key=lambda sample: (sample["greedy"], sample["draw"], sample["index"]))
        return Evaluation(summarise(samples, self.rewards.names, self.settings.samples), samples)

    def _score(
        self, policy: Policy, purpose: Purpose, size: int, state: RunState | None
    ) -> list[Sample]:
        samples: list[Sample] = []
        for rollouts in sample_draws(
            policy,
            self.draws,
            size,
            seed=self.seed,
            space="evaluation",
            batch=self.batch,
            purpose=purpose,
        ):
            scores = self.rewards(rollouts, state)
            right = self.right(scores)
            samples += _records(rollouts, scores, right, size, greedy=purpose == "greedy")
        return samples

    def right(self, scores: Scores) -> torch.Tensor:
        """[B] float64: 1 for completions that the accuracy reward calls right, 0 for wrong ones.

        NaN where that reward does not apply or failed: nobody said that they are wrong.
        """
        values = scores.column(self.settings.accuracy or scores.names[0])
        right = (values >= self.settings.threshold - 1e-9).to(values.dtype)
        return right.masked_fill(values.isnan(), math.nan)


def sample_draws(
    policy: Policy,
    draws: Sequence[Draw],
    size: int,
    *,
    seed: int,
    space: str,
    batch: int,
    purpose: Purpose,
) -> list[Rollouts]:
    """Rollouts of each draw, at most `batch` at once, named by (seed, space, draw, index)."""
    each = max(1, batch // size)
    parts = []
    for start in range(0, len(draws), each):
        chunk = draws[start : start + each]
        seeds = [seed_for(seed, space, draw.number, i) for draw in chunk for i in range(size)]
        with torch.no_grad():
            rollouts = policy.sample(
                [draw.row for draw in chunk], group_size=size, seeds=seeds, purpose=purpose
            )
        numbers = torch.tensor([draw.number for draw in chunk], device=rollouts.groups.device)
        parts.append(replace(rollouts, groups=numbers.repeat_interleave(size)))
    return parts


def _records(
    rollouts: Rollouts, scores: Scores, right: torch.Tensor, size: int, *, greedy: bool
) -> list[Sample]:
    values = scores.values.tolist()
    extra = {name: v for name, v in scores.extra.items() if len(v) == len(rollouts)}
    return [
        {
            "prompt": rollouts.prompts[row]["prompt"],
            "completion": rollouts.completions[row],
            "rewards": {
                name: None if math.isnan(value) else value
                for name, value in zip(scores.names, values[row], strict=True)
            },
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


def summarise(samples: Sequence[Sample], names: Sequence[str], size: int) -> dict[str, float]:
    """accuracy, greedy_accuracy, pass_at_k, length, truncated and each reward's mean."""
    drawn = [sample for sample in samples if not sample["greedy"]]
    greedy = [sample for sample in samples if sample["greedy"]]
    if not drawn:
        return {}
    metrics = {
        "prompts": float(len({sample["draw"] for sample in drawn})),
        "accuracy": _mean([s["right"] for s in drawn if s["right"] is not None]),
        "length": _mean([sample["length"] for sample in drawn]),
        "truncated": _mean([sample["truncated"] for sample in drawn]),
    }
    if greedy:
        metrics["greedy_accuracy"] = _mean([s["right"] for s in greedy if s["right"] is not None])
    unscored = sum(sample["right"] is None for sample in drawn)
    if unscored:
        metrics["unscored"] = float(unscored)
    for name in names:
        values = [s["rewards"][name] for s in drawn if s["rewards"][name] is not None]
        metrics[f"rewards/{name}"] = _mean(values)
    answers: dict[int, list[bool | None]] = {}
    for sample in drawn:
        answers.setdefault(sample["draw"], []).append(sample["right"])
    right = [sum(map(bool, said)) for said in answers.values() if None not in said]
    k = 2
    while k <= size:
        metrics[f"pass_at_{k}"] = _mean([pass_at(k, size, correct) for correct in right])
        k *= 2
    return metrics


def pass_at(k: int, samples: int, correct: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that one of k draws is right, unbiased from n samples.

    Chen et al., "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, eq. 1.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _mean(values: Sequence[float]) -> float:
    return float(sum(values)) / len(values) if values else math.nan
