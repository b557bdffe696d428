"""Run a configuration for several seeds, and print a table of metrics before and after.

    python examples/three_seeds.py examples/arithmetic.yaml [dotted.key=value ...] [--seeds 0 1 2]
    python examples/three_seeds.py examples/shapes.yaml --metrics accuracy watch/image_diversity

Each run is the command `groupwise train` in its own process; seconds are of the whole command. It
is written to `runs/NAME_seed0` and so on, with the name of the file, or `--name`.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

METRICS = ("accuracy", "greedy_accuracy", "length")


def run(
    config: Path, name: str, seed: int, overrides: list[str], metrics: Sequence[str]
) -> dict[str, float]:
    """Metrics before and after training, and the seconds of the whole command."""
    output = Path("runs") / f"{name}_seed{seed}"
    started = time.monotonic()
    subprocess.run(
        [
            *(sys.executable, "-m", "groupwise", "train", str(config), "--overwrite"),
            *(f"seed={seed}", f"output={output}", *overrides),
        ],
        check=True,
    )
    seconds = time.monotonic() - started
    result = json.loads((output / "result.json").read_text(encoding="utf-8"))
    row = {"seed": seed, "steps": result["steps"], "seconds": seconds}
    for when in ("before", "after"):
        row |= {f"{when} {name}": result[when].get(name, math.nan) for name in metrics}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--metrics", nargs="+", default=METRICS)
    parser.add_argument("--name", help="of the runs' folders; that of the file if not set")
    options, overrides = parser.parse_known_args()
    # An override after the names of metrics is not one of them.
    names = [name for name in options.metrics if "=" not in name]
    overrides += [name for name in options.metrics if "=" in name]
    name = options.name or options.config.stem
    rows = [run(options.config, name, seed, overrides, names) for seed in options.seeds]
    print(f"| seed | steps | seconds | {' | '.join(names)} |")
    print("|---|---|---|" + "---|" * len(names))
    for row in rows:
        changes = " | ".join(
            f"{row[f'before {name}']:.3g} -> {row[f'after {name}']:.3g}" for name in names
        )
        print(f"| {row['seed']} | {row['steps']} | {row['seconds']:.0f} | {changes} |")


if __name__ == "__main__":
    main()
