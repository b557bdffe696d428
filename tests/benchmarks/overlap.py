"""Time of a step, compared with the sum of its parts, with async and isolated rewards.

    python tests/benchmarks/overlap.py [--seconds 1] [--steps 6]

For all completions of a step, sampling, an async reward and an isolated reward take `--seconds`
each, and an update a fifth of it. All of them only sleep, so the machine hardly matters. `parts` is
the sum of sampling, both rewards and the update; `bound` is the longest sequence of parts that must
follow each other.
"""

import argparse
import asyncio
import copy
import importlib.util
import statistics
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from groupwise import Rollouts, Sampler
from groupwise.rewards import Reward
from groupwise.scoring.scorer import Scorer

GROUPS, SIZE = 8, 4
BATCH = GROUPS * SIZE


async def judge(completions: list[str], seconds: list[float]) -> list[float]:
    """A reward that waits, as for a server."""
    await asyncio.sleep(sum(seconds) / BATCH)
    return [text.count("1") - 0.25 * len(text) for text in completions]


def runs(completions: list[str], seconds: list[float]) -> list[float]:
    """A reward that blocks, as if it ran programs; isolated in a separate process."""
    time.sleep(sum(seconds) / BATCH)
    return [0.1 * text.count("2") for text in completions]


class Engine(Sampler):
    """Samples with its own copy of the weights, as a server does."""

    def __init__(self, policy: Any) -> None:
        self.copy, self.version = copy.deepcopy(policy), -1

    def follow(self, policy: Any, name: str, version: int) -> None:
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, *args: Any, **options: Any) -> Rollouts:
        rollouts = self.copy.sample(*args, **options)
        return replace(rollouts, versions=torch.full((len(rollouts),), self.version))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    lab, seconds = _lab(), options.seconds
    print("| setting | parts | step | bound | step / parts |\n|---|---|---|---|---|")
    for name, settings, by_engine, bound in [
        ("in process, one batch", {}, False, 2.2),
        ("in process, two batches", {"sample_batch": BATCH // 2}, False, 1.7),
        ("in process, four batches", {"sample_batch": BATCH // 4}, False, 1.45),
        ("in process, ahead", {"ahead": 1}, False, 1.2),
        ("an engine, ahead", {"ahead": 1}, True, 1.2),
    ]:
        step = _step_seconds(lab, settings, by_engine, seconds, options.steps)
        parts = 3.2 * seconds
        print(f"| {name} | {parts:.2f} | {step:.2f} | {bound * seconds:.2f} | {step / parts:.2f} |")


def _step_seconds(
    lab: Any, settings: dict[str, Any], by_engine: bool, seconds: float, steps: int
) -> float:
    """The median seconds of a step, without the first and the last, which overlap with no other."""

    class Slow(lab.Tabular):  # type: ignore[misc]
        def sample(self, prompts: Any, *, group_size: int, **options: Any) -> Rollouts:
            time.sleep(seconds * len(prompts) * group_size / BATCH)
            return super().sample(prompts, group_size=group_size, **options)

    policy = Slow()
    rows = [{**row, "seconds": seconds} for row in lab.rows()]
    counts = {"groups_per_step": GROUPS, "group_size": SIZE, "steps": steps}
    trainer = lab.trainer(
        policy,
        source=rows,
        held_out=0.0,
        sampler=Engine(policy) if by_engine else None,
        **counts,
        **settings,
    )
    sys.path.insert(0, str(Path(__file__).parent))
    import overlap

    rewards = [Reward(name="judge", function=overlap.judge)]
    rewards.append(Reward(name="runs", function=overlap.runs, isolate=True))
    scorer = trainer.experience.scorer = Scorer(rewards)
    scorer.load()
    learn = trainer.learner.learn

    def slow_learn(*arguments: Any) -> Any:
        time.sleep(0.2 * seconds)
        return learn(*arguments)

    trainer.learner.learn = slow_learn
    ends = [time.perf_counter()]
    try:
        lab.fit(trainer, lambda *_: ends.append(time.perf_counter()))
    finally:
        scorer.close()
    return statistics.median(b - a for a, b in pairwise(ends[1:-1]))


def _lab() -> Any:
    """The helpers of tests/core, with a policy that takes no time."""
    path = Path(__file__).parents[1] / "core" / "conftest.py"
    spec = importlib.util.spec_from_file_location("lab", path)
    assert spec is not None
    assert spec.loader is not None
    lab = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lab)
    return lab


if __name__ == "__main__":
    main()
