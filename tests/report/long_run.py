"""The folder of a long run, made up: what a page must bear.

python tests/report/long_run.py runs/long                 # 10,000 steps, 100 evaluations
groupwise report runs/long
"""

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REWARDS = ("correct", "format", "length")
WORDS = "so we add the two numbers and carry what is left to the next place"
PHASES = {"sample": 5.0, "reward": 0.4, "update": 3.0}
NOISY = {
    "kl": 0.02, "entropy": 0.9, "truncated": 0.1, "clip_fraction": 0.02, "zero_variance": 0.3,
    "mismatch/mean": 0.004, "mismatch/max": 0.4, "mismatch/kl": 1e-4, "grad_norm": 0.6, "loss": 0.0,
    "learning_rate": 1e-6, "length": 400.0, "length_max": 1024.0, "decisions_per_second": 9000.0,
    "trained_entropy": 0.8, "trained_decisions": 30_000.0, "importance": 1.0, "failed": 0.0,
    "memory/host": 12.0, "memory/device": 61.0, "memory/device_reserved": 70.0, "unscored": 0.0,
}  # fmt: skip


def write(folder: Path, *, steps: int = 10_000, evaluations: int = 100, prompts: int = 500) -> Path:
    """Write the run; its numbers and texts are drawn with one seed. Returns the folder."""
    draw = random.Random(0)
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    every = max(steps // evaluations, 1)
    _lines(folder / "metrics.jsonl", _metrics(draw, steps, every))
    sides = {"before": 0.2, "after": 0.8}
    for side, skill in sides.items():
        rows = (
            _sample(draw, n, index, skill, greedy=index == 0)
            for n in range(prompts)
            for index in range(4)
        )
        _lines(folder / "samples" / f"{side}.jsonl", rows)
    kept = range(1, steps + 1, 2 ** max(0, math.ceil(math.log2(steps / 1000))))
    _lines(folder / "samples" / "training.jsonl", _training(draw, kept, steps))
    result = {"before": {"accuracy": 0.2, "reward": 0.3}, "after": {"accuracy": 0.8, "reward": 1.1}}
    result |= {"steps": steps, "seconds": 9 * steps, "unit": "tokens", "policy": "language_model"}
    (folder / "result.json").write_text(json.dumps({**result, "algorithm": "grpo"}))
    (folder / "run.json").write_text(json.dumps({"groupwise": "0.1.0", "starts": [_start()]}))
    (folder / "config.yaml").write_text(
        f"policy: {{name: language_model}}\ntrain: {{steps: {steps}}}\n"
    )
    return folder


def _metrics(draw: random.Random, steps: int, every: int) -> Iterator[dict[str, Any]]:
    yield {"step": 0, **_evaluation(draw, 0.0)}
    for step in range(1, steps + 1):
        done = step / steps
        row: dict[str, Any] = {"step": step, "reward": 0.3 + 0.8 * done + draw.gauss(0, 0.1)}
        row |= {
            "reward_std": 0.3,
            "accuracy": min(1.0, max(0.0, draw.gauss(0.2 + 0.6 * done, 0.06))),
        }
        row |= {f"rewards/{name}": draw.gauss(done, 0.1) for name in REWARDS}
        row |= {name: size * draw.uniform(0.8, 1.2) for name, size in NOISY.items()}
        row |= {f"time/{name}": size * draw.uniform(0.8, 1.3) for name, size in PHASES.items()}
        row |= {f"reward_time/{name}": draw.uniform(0.01, 0.2) for name in REWARDS}
        yield row | (_evaluation(draw, done) if step % every == 0 else {})


def _evaluation(draw: random.Random, done: float) -> dict[str, Any]:
    share = 0.2 + 0.6 * done
    names = ("accuracy", "greedy_accuracy", "pass_at_4", "reward", "length")
    row = {f"evaluation/{name}": draw.gauss(share, 0.01) for name in names}
    row |= {f"evaluation/rewards/{name}": draw.gauss(done, 0.05) for name in REWARDS}
    return {**row, "evaluation/prompts": 500, "time/evaluate": 40.0}


def _training(draw: random.Random, kept: Sequence[int], steps: int) -> Iterator[dict[str, Any]]:
    for step in kept:
        for index, chosen in enumerate(("first", "best", "worst", "longest")):
            row = _sample(draw, step, index, 0.2 + 0.6 * step / steps)
            group = {"mean": 0.5, "std": 0.4}
            yield {
                **row,
                "step": step,
                "chosen": [chosen],
                "advantage": draw.gauss(0, 1),
                "group": group,
            }


def _sample(
    draw: random.Random, number: int, index: int, skill: float, *, greedy: bool = False
) -> dict[str, Any]:
    is_right, length = draw.random() < skill, draw.randrange(40, 400)
    rewards = {"correct": float(is_right), "format": draw.random(), "length": -length / 400}
    return {
        "prompt": f"Question {number}: what is {number} + {index}? Think first.",
        "completion": " ".join(draw.choices(WORDS.split(), k=length)),
        "rewards": rewards,
        "total": sum(rewards.values()),
        "right": is_right,
        "length": length,
        "draw": number,
        "index": index,
        "truncated": False,
        "greedy": greedy,
    }


def _start() -> dict[str, Any]:
    packages = {"groupwise": "0.1.0", "torch": "2.15.0", "transformers": "5.23.0"}
    devices = {"NVIDIA H100 80GB HBM3, 79 GiB": 8}
    return {
        "step": 0,
        "command": "groupwise train long.yaml",
        "devices": devices,
        "packages": packages,
    }


def _lines(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    print(write(options.folder, steps=options.steps))
