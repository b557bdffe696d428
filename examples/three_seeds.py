"""Run a configuration for several seeds and print a table of what each one reached.

    python examples/three_seeds.py examples/arithmetic.yaml [--seeds 0 1 2] [dotted.key=value ...]

Each run is the command `groupwise train` in a process of its own, timed from command to end.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

COLUMNS = ("accuracy", "greedy_accuracy", "length")


def run(config: Path, seed: int, overrides: list[str]) -> dict[str, float]:
    """Metrics before and after, and the seconds of the whole command."""
    output = Path("runs") / f"{config.stem}_seed{seed}"
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
        row |= {f"{when} {name}": result[when][name] for name in COLUMNS}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options, overrides = parser.parse_known_args()
    rows = [run(options.config, seed, overrides) for seed in options.seeds]
    print("| seed | steps | seconds | accuracy | greedy | length |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        changes = " | ".join(
            f"{row[f'before {name}']:.3g} -> {row[f'after {name}']:.3g}" for name in COLUMNS
        )
        print(f"| {row['seed']} | {row['steps']} | {row['seconds']:.0f} | {changes} |")


if __name__ == "__main__":
    main()
