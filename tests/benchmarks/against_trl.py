"""Time of a training step of a language model: TRL's GRPOTrainer, ours, and a plain loop.

    python tests/benchmarks/against_trl.py                # makes the models, prints the table
    python tests/benchmarks/against_trl.py A V --rounds 5 --threads 1
    python tests/benchmarks/against_trl.py --device cuda --rounds 1 --steps 3    # a real size

Same random model, prompts, reward and settings, in float32 on the CPU and in bf16 on a GPU. Sides
run in turns, round by round, each in a separate process, whose first step does not count. `model
alone` is a plain loop over transformers without our code. On a machine that is shared, `--threads
1 --cpu-time` measures processor time. Needs `pip install trl`.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sides import (
    alone,
    has_graphs,
    in_turns,
    machine,
    ours,
    ours_without_graphs,
    run_side,
    trl,
    trl_in_bf16,
)
from works import DEFAULT, WORKS, make

SIDES = {
    "trl": trl,
    "trl in bf16": trl_in_bf16,
    "ours": ours,
    "ours without graphs": ours_without_graphs,
    "model alone": alone,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", choices=[[], *WORKS], help="all of the device if none")
    parser.add_argument("--device", choices=DEFAULT, default="cpu")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="all of the device if none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time, not wall time"
    )
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    parser.add_argument("--models", type=Path, help="where the models are, made there if missing")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    folder = options.models or Path(tempfile.mkdtemp())
    works = options.works or DEFAULT[options.device]
    for name in works:
        saved_model(name, folder, options.device)
    if options.side:
        (name,) = works
        clock = time.process_time if options.cpu_time else time.perf_counter
        side, work = SIDES[options.side], WORKS[name]
        print(
            json.dumps(
                run_side(side, work, folder / name, options.steps, clock, device=options.device)
            )
        )
        return
    left_out = {"trl in bf16", "ours without graphs"} if not on_gpu else set()
    left_out |= set() if has_graphs() else {"ours without graphs"}
    sides = options.sides or [side for side in SIDES if side not in left_out]
    note = " Processor time." if options.cpu_time else ""
    print(machine(options) + note)
    if not on_gpu:
        print(
            "\n| work | TRL | Groupwise | ratio | model alone | Groupwise / model alone "
            "| peak GB, TRL and ours |"
        )
        print("|---|---|---|---|---|---|---|")
    for name in works:
        print((rows if on_gpu else row)(name, compare(name, folder, sides, options)), flush=True)


def saved_model(name: str, folder: Path, device: str) -> Path:
    """The folder of a workload's model, which is made there if it is not yet."""
    path = folder / name
    if not path.exists():
        partial = folder / f"{name}.partial"
        make(WORKS[name], partial, device)
        partial.rename(path)
    return path


def compare(name: str, folder: Path, sides: Sequence[str], options: Any) -> dict[str, Any]:
    settings = [name, "--models", str(folder), "--steps", str(options.steps)]
    settings += ["--device", options.device]
    settings += ["--cpu-time"] if options.cpu_time else []
    return in_turns(__file__, sides, settings, rounds=options.rounds, threads=options.threads)


def row(name: str, measured: dict[str, Any]) -> str:
    trl, ours, alone = [statistics.median(values["seconds"]) for values in measured.values()]
    peaks = f"{measured['trl']['peak']:.2f} and {measured['ours']['peak']:.2f}"
    times = f"{trl:.2f} s | {ours:.2f} s | {trl / ours:.2f} | {alone:.2f} s | {ours / alone:.2f}"
    return f"| {name} | {times} | {peaks} |"


def rows(name: str, measured: dict[str, Any]) -> str:
    """A table with a line for each side."""
    tokens = WORKS[name].rows * WORKS[name].completion
    lines = [
        f"\n| {name} | seconds a step | of them sampling | tokens a second | peak GB |",
        "|---|---|---|---|---|",
    ]
    for side, values in measured.items():
        total, sampling = (statistics.median(values[key]) for key in ("seconds", "sampling"))
        numbers = f"{total:.2f} | {sampling:.2f} | {tokens / total:,.0f} | {values['peak']:.1f}"
        lines.append(f"| {side} | {numbers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
