"""Summary: the metrics of an evaluation's samples."""

import math
from collections.abc import Mapping, Sequence

from groupwise.evaluation import Sample
from groupwise.kit.metric_names import Family
from groupwise.metrics.step_metrics import column_value, shares_of_ends
from groupwise.metrics.tally import Tally

COUNTS = frozenset({"failed", "unscored"})
"""Metrics that count completions."""


def summarise(
    samples: Sequence[Sample],
    names: Sequence[str],
    size: int,
    watched: Sequence[str] = (),
    *,
    columns: Sequence[str] = (),
    judged: bool = True,
) -> dict[str, float]:
    """accuracy, greedy_accuracy, pass_at_k, length, truncated, the means of every reward and of
    every fact that the policy logs, in environments of several turns why episodes ended, and the
    means of the environment's columns.

    Failed completions are in no mean; `failed` and `unscored` are counts, absent if 0.

    judged: False if no reward tells right from wrong: then there are no accuracies and no
    pass_at_k, but `greedy_reward`.
    """
    sampled = [sample for sample in samples if not sample["greedy"]]
    if not sampled:
        return {}
    drawn = [sample for sample in sampled if not sample.get("failed")]
    greedy = [sample for sample in samples if sample["greedy"] and not sample.get("failed")]
    metrics = {
        "prompts": float(len({sample["draw"] for sample in sampled})),
        **({"accuracy": mean([sample["right"] for sample in drawn])} if judged else {}),
        "reward": mean([sample["total"] for sample in drawn]),
        "length": mean([sample["length"] for sample in drawn]),
        "truncated": mean([sample["truncated"] for sample in drawn]),
    }
    if not metrics["length"]:
        del metrics["length"]  # the policy makes no decisions in evaluation
    if greedy and judged:
        metrics["greedy_accuracy"] = mean([sample["right"] for sample in greedy])
    elif greedy:
        metrics["greedy_reward"] = mean([sample["total"] for sample in greedy])
    unscored = sum(sample["right" if judged else "total"] is None for sample in drawn)
    if unscored:
        metrics["unscored"] = float(unscored)
    if len(drawn) < len(sampled):
        metrics["failed"] = float(len(sampled) - len(drawn))
    metrics |= _by_source(drawn, judged=judged)
    for name in names:
        metrics[f"{Family.REWARDS}/{name}"] = mean([sample["rewards"][name] for sample in drawn])
    for name in watched:
        metrics[f"{Family.WATCH}/{name}"] = mean(
            [(sample.get("watched") or {}).get(name) for sample in drawn]
        )
    metrics |= {f"{Family.ENVIRONMENT}/{name}": _mean_of(name, drawn) for name in columns}
    if any("ended" in sample for sample in sampled):
        metrics |= shares_of_ends([sample["ended"] for sample in drawn])
    return _of_facts(drawn) | metrics | (_pass_at_all(sampled, size) if judged else {})


def _by_source(drawn: Sequence[Sample], *, judged: bool) -> dict[str, float]:
    """Accuracy, reward and length of each source in a mixture; an accuracy only where a completion
    was judged."""
    metrics = dict[str, float]()
    keys = {"accuracy": "right"} if judged else {}
    for label in dict.fromkeys(sample["source"] for sample in drawn if "source" in sample):
        own = [sample for sample in drawn if sample.get("source") == label]
        for name, key in {**keys, "reward": "total", "length": "length"}.items():
            if any(sample[key] is not None for sample in own):
                metrics[f"{name}/{label}"] = mean([sample[key] for sample in own])
    return metrics


def _of_facts(drawn: Sequence[Sample]) -> dict[str, float]:
    """By name, the mean of each logged fact over all decisions of these samples, as in training."""
    tally = Tally()
    for sample in drawn:
        for name, value in sample.get("logged", {}).items():
            if value is not None:  # itself a mean over the decisions of its completion
                tally.mean(name, value * sample["length"], sample["length"])
    return {name: value for name, value in tally.result().items() if not math.isnan(value)}


def _mean_of(column: str, drawn: Sequence[Sample]) -> float:
    values = (column_value(column, sample.get("extra", {}).get(column)) for sample in drawn)
    return mean([value for value in values if not math.isnan(value)])


def joined(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of several policies as one: sums of counts, and means over those that have it."""
    values = {
        name: [metrics[name] for metrics in each if name in metrics]
        for name in dict.fromkeys(name for metrics in each for name in metrics)
    }
    return {n: sum(of_n) if n in COUNTS else mean(of_n) for n, of_n in values.items()}


def _pass_at_all(drawn: Sequence[Sample], size: int) -> dict[str, float]:
    """pass_at_k for every power of two up to `size`, over the prompts whose completions were all
    judged; of an episode with several judged replies each counts as one."""
    answers: dict[int, list[bool | None]] = {}
    for sample in drawn:
        answers.setdefault(sample["draw"], []).append(sample["right"])
    judged = [of_prompt for of_prompt in answers.values() if None not in of_prompt]
    counts = [(len(of_prompt), sum(map(bool, of_prompt))) for of_prompt in judged]
    powers = (2**n for n in range(1, size.bit_length()))
    return {f"pass_at_{k}": mean([pass_at(k, *c) for c in counts if c[0] >= k]) for k in powers}


def pass_at(k: int, samples: int, correct: int) -> float:
    """1 - C(n - c, k) / C(n, k): unbiased estimate, from n samples, that one of k draws is right.

    Chen et al., "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, eq. 1.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def mean(values: Sequence[float | None]) -> float:
    """The mean of the values that are not None."""
    known = [value for value in values if value is not None]
    return float(sum(known)) / len(known) if known else math.nan
