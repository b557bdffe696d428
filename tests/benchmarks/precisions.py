"""Three steps of an example in a precision: whether ratios are 1, and what a step takes.

    python tests/benchmarks/precisions.py arithmetic bf16
    python tests/benchmarks/precisions.py shapes fp16

Prints JSON: the largest ratio of the sampler's to the policy's probabilities that the mismatch
allows, means of the steps' metrics, and seconds of the last step.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 3
MEANS = ("mismatch/mean", "clip_fraction", "loss_scale", "grad_norm")
SUMS = ("overflows", "skipped_updates")
LAST = ("time/sample", "time/update", "decisions_per_second")
SMALL = {
    "arithmetic": {"policy.max_new_tokens": 8, "prompts.size": 50},
    "shapes": {"policy.steps": 4, "policy.window": {"kind": "random", "size": 1}},
}
"""Settings of a trial."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("example", choices=SMALL)
    parser.add_argument("precision", choices=("float32", "bf16", "fp16"))
    parser.add_argument("--toy", action="store_true", help="a trial: small groups, short samples")
    options = parser.parse_args()
    small = {"train.groups_per_step": 1, "train.group_size": 4, **SMALL[options.example]}
    metrics = steps(options.example, options.precision, small if options.toy else {})
    print(json.dumps(summary(metrics)))


def steps(example: str, precision: str, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metrics of the steps."""
    import groupwise

    output = Path(tempfile.mkdtemp()) / "run"
    settings = {
        "policy.precision": precision,
        "train.steps": STEPS,
        "evaluation.prompts": 0,
        "evaluation.every": 0,
        "output": str(output),
        **changes,
    }
    groupwise.train(EXAMPLES / f"{example}.yaml", quiet=True, **settings)
    lines = (output / "metrics.jsonl").read_text("utf-8").splitlines()
    return [line for line in map(json.loads, lines) if "time/update" in line]


def summary(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the metrics that the steps have; ratio: how far a decision's may be from 1."""
    result = {}
    for name in (*MEANS, *SUMS):
        values = [line[name] for line in metrics if line.get(name) is not None]
        if values:
            result[name] = sum(values) / (len(values) if name in MEANS else 1)
    largest = [line["mismatch/max"] for line in metrics if "mismatch/max" in line]
    if largest:
        result |= {"mismatch/max": max(largest), "ratio": math.exp(max(largest))}
    return result | {name: metrics[-1][name] for name in LAST}


if __name__ == "__main__":
    main()
