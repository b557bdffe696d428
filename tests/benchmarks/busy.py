"""Busy: seconds of a step alone, and beside other programs that use a core each.

    python tests/benchmarks/busy.py                      # examples/arithmetic.yaml, 2 programs
    python tests/benchmarks/busy.py --programs 1 --config examples/shapes.yaml --steps 6

Every way to choose threads is measured alone and beside the programs, in turn, each in a process of
its own, on an otherwise idle machine. The first steps are left out: there the number of threads may
still be that of before.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAYS: Mapping[str, Mapping[str, str]] = {
    "as many threads as free cores": {},
    "a thread for each core": {"OMP_NUM_THREADS": str(os.cpu_count())},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
FIRST = 2
"""Steps left out."""


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Other programs that use a core each; not children of the runs, so they count as others."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def steps(config: Path, count: int, environment: Mapping[str, str]) -> list[float]:
    """Seconds of each step of a run, without evaluations."""
    inherited = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "groupwise", "train", str(config), f"output={run}"]
        command += [f"train.steps={count}", "evaluation.prompts=0", "--quiet"]
        subprocess.run(command, env={**inherited, **environment}, check=True, cwd=ROOT)
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        phases = ("time/sample", "time/reward", "time/update")
        return [sum(line[name] for name in phases) for line in lines if "time/update" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, default=ROOT / "examples" / "arithmetic.yaml")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--programs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    print(f"| threads | alone | beside {options.programs} programs | ratio |\n|---|---|---|---|")
    for title, environment in WAYS.items():
        medians = []
        for programs in (0, options.programs):
            with busy(programs):
                seconds = steps(options.config, options.steps, environment)
            medians.append(statistics.median(seconds[FIRST:]))
        alone, beside = medians
        print(f"| {title} | {alone:.2f} s | {beside:.2f} s | {beside / alone:.1f} |", flush=True)


if __name__ == "__main__":
    main()
