"""Cost of a critic: memory and time of a step of PPO and Hybrid GRPO, compared with GRPO.

    python tests/benchmarks/ppo_cost.py                       # makes the model, prints the table
    python tests/benchmarks/ppo_cost.py --rounds 5 --threads 1 --cpu-time

Same random model, prompts, reward and numbers of samples, in float32 on the CPU, with the defaults
of each algorithm. Sides run in turns, round by round, each in a separate process, whose first step
does not count. The memory of the imports alone, the side `nothing`, is subtracted from each peak.
For comparison, the memory of weights, gradients and optimizer state is computed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from sides import GROUP, RATE, Side, Tick, reward, run_side
from works import VARIETY, Work, make

ROOT = Path(__file__).parents[2]
WORK = Work(prompt=16, completion=32, rows=16, hidden=384, layers=6)
SIDES = {
    "nothing": None,
    "GRPO": ("grpo", GROUP),
    "PPO": ("groupwise_ppo.ppo:PPO", GROUP),
    "PPO, groups of 2": ("groupwise_ppo.ppo:PPO", 2),
    "Hybrid GRPO": ("groupwise_ppo.hybrid:HybridGRPO", GROUP),
}
"""The algorithm of each side, and its group size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time, not wall time"
    )
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    parser.add_argument("--model", type=Path, help="where the model is, made there if missing")
    options = parser.parse_args()
    model = options.model or Path(tempfile.mkdtemp()) / "model"
    if not model.exists():
        make(WORK, model, "cpu")
    if options.side:
        clock = time.process_time if options.cpu_time else time.perf_counter
        side = training_side(options.side) if SIDES[options.side] else imports
        print(json.dumps(run_side(side, WORK, model, options.steps, clock)))
        return
    print(table(compare(model, options), parameters(model)))


def compare(model: Path, options: Any) -> dict[str, dict[str, Any]]:
    """Seconds of all steps and peaks of memory in GB, of each side."""
    measured: dict[str, dict[str, Any]] = {side: {"seconds": [], "peaks": []} for side in SIDES}
    settings = ["--model", str(model), "--steps", str(options.steps)]
    settings += ["--cpu-time"] if options.cpu_time else []
    paths = [str(ROOT / "examples" / "ppo" / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": str(options.threads),
    }
    for _ in range(options.rounds):
        for side, values in measured.items():
            command = [sys.executable, __file__, "--side", side, *settings]
            output = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, check=True
            ).stdout
            result = json.loads(output.splitlines()[-1])
            values["seconds"] += result["seconds"][1:]
            values["peaks"].append(result["peak"])
    return measured


def table(measured: dict[str, dict[str, Any]], count: int) -> str:
    """The table: medians of peaks over processes, and of seconds over steps."""
    imports_peak = statistics.median(measured.pop("nothing")["peaks"])
    peaks = {
        side: statistics.median(values["peaks"]) - imports_peak for side, values in measured.items()
    }
    seconds = {side: statistics.median(values["seconds"]) for side, values in measured.items()}
    lines = [
        "| side | seconds a step | against GRPO | peak above the libraries, MB | against GRPO |",
        "|---|---|---|---|---|",
        *(
            f"| {side} | {seconds[side]:.2f} | {seconds[side] / seconds['GRPO']:.2f} | "
            f"{1e3 * peaks[side]:.0f} | {peaks[side] / peaks['GRPO']:.2f} |"
            for side in measured
        ),
    ]
    megabytes = 4 * 4 * count / 1e6
    return "\n".join([*lines, f"\nA model's weights, gradients and moments: {megabytes:.0f} MB."])


def parameters(model: Path) -> int:
    from transformers import AutoModelForCausalLM

    return sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(model).parameters())


# ---- the sides


def imports(work: Work, model: Path, steps: int, tick: Tick, device: str) -> None:
    """Only the imports of a step, without a model."""
    for name in ("groupwise_ppo.hybrid", "groupwise_ppo.policy", "groupwise.run.train"):
        import_module(name)


def training_side(side: str) -> Side:
    """The side that trains with this algorithm and group size."""

    def train(work: Work, model: Path, steps: int, tick: Tick, device: str) -> None:
        import groupwise

        class Ticking(groupwise.Callback):
            def on_step(self, step: int, metrics: Any) -> None:
                tick(0.0)

        algorithm, size = SIDES[side] or ("grpo", GROUP)
        kind = (
            "groupwise_ppo.policy:LanguageModelWithCritic" if ":" in algorithm else "language_model"
        )
        groupwise.train(
            policy={"name": kind, "model": str(model), "max_new_tokens": work.completion},
            prompts=[{"prompt": prompt} for prompt in work.prompts(VARIETY)],
            rewards=[reward],
            algorithm=algorithm,
            train={
                "steps": steps,
                "groups_per_step": work.rows // size,
                "group_size": size,
                "learning_rate": RATE,
            },
            evaluation={"prompts": 0},
            callbacks=[Ticking()],
            output=Path(tempfile.mkdtemp()) / "run",
            quiet=True,
        )

    return train


if __name__ == "__main__":
    main()
