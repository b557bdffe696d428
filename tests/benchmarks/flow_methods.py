"""Methods for image models on shapes and glyphs: CPU seconds to an accuracy, and diversity.

    python tests/benchmarks/flow_methods.py --seeds 0 1 2 --out runs/methods
    python tests/benchmarks/flow_methods.py --task glyphs --methods window nft --out runs/methods
    python tests/benchmarks/flow_methods.py --only-draw --out runs/methods      # of existing runs
    python tests/benchmarks/flow_methods.py --methods nft --trial b0.3 --minutes 1.5 \\
        --set algorithm.b=0.3 --out runs/trials                                 # another setting

Trains examples/shapes.yaml (or glyphs.yaml) by each method, at a constant learning rate, until an
evaluation on held-out prompts with 40 ODE steps reaches the last goal, or the minutes are over.
Seconds are those that the process had on the CPU (`--device cuda`: of the clock) for sampling,
scoring and updating, without evaluations; the minutes are of these. Each method has the settings of
`METHODS`, the best of a few trials (docs/flow.md). `--trial` compares further ones. Every run is a
process of its own, one after the other, and its figures are a file in the folder: a second call
makes those that are missing.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FINISHED = {"name": "forward_process", "decisions": 2}
"""Of a policy without a path; its other settings are those of the example."""
RATE = {"learning_rate": 2e-4}
METHODS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "window": {"train": RATE},
    "nft": {"policy": FINISHED, "algorithm": {"name": "nft", "beta": 0.1}, "train": RATE},
    "awm": {"policy": FINISHED, "algorithm": {"name": "awm", "beta": 0.03}, "train": RATE},
    "elbo_grpo": {
        "policy": FINISHED,
        "algorithm": {"name": "elbo_grpo", "beta": 0.03},
        "train": {"learning_rate": 1e-4},
    },
    "mixgrpo": {"policy": {"window": {"kind": "sliding", "size": 3, "every": 5}}, "train": RATE},
    "flow_dppo": {"algorithm": {"name": "flow_dppo"}, "train": RATE},
    "flash_grpo": {
        "policy": {"window": {"kind": "random", "size": 1}},
        "algorithm": {"name": "flash_grpo"},
        "train": RATE,
    },
    "tempflow": {
        "policy": {"window": {"kind": "random", "size": 1}, "shared_noise": True},
        "algorithm": {"name": "tempflow"},
        "train": {"learning_rate": 1e-4},
    },
}
OF_A_PATH = ("window", "noise_level")
GOALS = {"shapes": (0.75, 0.92), "glyphs": (0.6, 0.75)}
DIVERSITY = "image_diversity"
EVERY = 10
COLOURS = ("#2f6fde", "#d9730d", "#2da44e", "#8250df", "#8c959f", "#bf3989", "#0a7ea4", "#953800")


@dataclass(frozen=True)
class Figures:
    """Of a run: seconds of training, accuracy and diversity at each evaluation, the first before
    training; the reward's accuracy alarm at the end, as a sentence, or None."""

    curve: Sequence[tuple[float, float, float]]
    steps: int
    alarm: str | None

    def seconds_to(self, goal: float) -> float:
        """NaN if it was not reached."""
        reached = [seconds for seconds, accuracy, _ in self.curve if accuracy >= goal]
        return reached[0] if reached else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=GOALS, default="shapes")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS)[:4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=6.0, help="of training, for one run")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="folder of figures and picture")
    parser.add_argument("--trial", default="", help="a name for runs with the settings of --set")
    parser.add_argument("--set", nargs="+", default=[], metavar="key=value")
    parser.add_argument("--only-draw", action="store_true", help="of existing runs")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run(options)
        return
    figures: dict[str, list[Figures]] = {}
    for seed in options.seeds:
        for method in options.methods:
            if not file_of(options, method, seed).exists() and not options.only_draw:
                alone(method, seed)
            if file_of(options, method, seed).exists():
                figures.setdefault(method, []).append(read(file_of(options, method, seed)))
    print(table(figures, GOALS[options.task]))
    if not options.trial:
        picture = options.out / f"methods_{options.task}.svg"
        picture.write_text(draw(figures, GOALS[options.task]), encoding="utf-8")


def alone(method: str, seed: int) -> None:
    """Makes one run in a process of its own, with the arguments of this one."""
    command = [*sys.argv, "--one", "--methods", method, "--seeds", str(seed)]
    subprocess.run([sys.executable, *command], check=True)


def file_of(options: Any, method: str, seed: int) -> Path:
    name = "_".join(filter(None, (options.task, method, options.trial, str(seed))))
    return Path(options.out) / f"{name}.json"


def read(path: Path) -> Figures:
    return Figures(**json.loads(path.read_text(encoding="utf-8")))


# ---- a run


def run(options: Any) -> None:
    """Trains by one method with one seed, and writes its figures."""
    if options.device == "cpu":
        os.environ["ACCELERATE_USE_CPU"] = "true"
    import groupwise
    from groupwise.learning.trainer import Trainer

    (method,), (seed,) = options.methods, options.seeds
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    evaluating = 0.0
    evaluate = Trainer.evaluate

    def timed(trainer: Trainer) -> Any:
        nonlocal evaluating
        started = clock()
        try:
            return evaluate(trainer)
        finally:
            evaluating += clock() - started

    Trainer.evaluate = timed  # type: ignore[method-assign]
    goal, limit = GOALS[options.task][-1], 60 * options.minutes
    began = 0.0
    curve: list[tuple[float, float, float]] = []

    class Watch(groupwise.Callback):
        """Ends the run at the goal or at the limit."""

        def on_evaluation(self, step: int, evaluation: Any) -> None:
            nonlocal began
            began = began or clock() - evaluating
            metrics = evaluation.metrics
            diversity = metrics.get(f"watch/{DIVERSITY}", math.nan)
            curve.append((clock() - evaluating - began, metrics["accuracy"], diversity))
            print(method, seed, step, [round(value, 3) for value in curve[-1]], flush=True)

        def on_step(self, step: int, metrics: Any) -> None:
            reached = "evaluation/accuracy" in metrics and curve[-1][1] >= goal
            if reached or clock() - evaluating - began >= limit:
                signal.raise_signal(signal.SIGINT)  # as Ctrl-C: the run ends after this step

    output = options.out / file_of(options, method, seed).stem
    result = groupwise.train(
        configuration(options.task, method),
        callbacks=[Watch()],
        overwrite=True,
        quiet=True,
        **{
            "seed": seed,
            "output": str(output.resolve()),
            **{key: yaml.safe_load(value) for key, _, value in map(_parted, options.set)},
        },
    )
    alarm = result.alarms.get(DIVERSITY)
    figures = {
        "curve": curve,
        "steps": result.steps,
        "alarm": None if alarm is None else str(alarm),
    }
    file_of(options, method, seed).write_text(json.dumps(figures), encoding="utf-8")


def _parted(text: str) -> tuple[str, str, str]:
    return text.partition("=")


def configuration(task: str, method: str) -> dict[str, Any]:
    """The example with the method's policy and algorithm."""
    config = yaml.safe_load((EXAMPLES / f"{task}.yaml").read_text(encoding="utf-8"))
    policy, algorithm = config["policy"], config["algorithm"]
    policy["model"] = str(EXAMPLES / policy["model"])
    config["prompts"]["path"] = str(EXAMPLES / config["prompts"]["path"])
    changes = METHODS[method]
    policy |= changes.get("policy", {})
    if policy["name"] == "forward_process":
        for name in OF_A_PATH:
            policy.pop(name, None)
    if "algorithm" in changes:
        kept = {"beta": algorithm["beta"]} if policy["name"] == "flow" else {}
        config["algorithm"] = {**kept, **changes["algorithm"]}
    config["train"] |= {"steps": 10_000, "schedule": "constant"} | changes.get("train", {})
    config["train"].pop("minutes", None)
    config["watch"] = [{"name": DIVERSITY, "tolerance": 0.06}]
    config["evaluation"] |= {"every": EVERY, "samples": 2, "prompts": 100}
    return config


# ---- table and picture


def table(figures: Mapping[str, Sequence[Figures]], goals: Sequence[float]) -> str:
    """A row for each method, the values of its seeds in each cell."""
    titles = ["method", *(f"seconds to {goal}" for goal in goals)]
    titles += ["steps", "last accuracy", "diversity before and after", "alarm"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for method, runs in figures.items():
        cells = [[_number(one.seconds_to(goal), one) for one in runs] for goal in goals]
        cells.append([str(one.steps) for one in runs])
        cells.append([f"{one.curve[-1][1]:.3f}" for one in runs])
        cells.append([f"{one.curve[0][2]:.3f} to {one.curve[-1][2]:.3f}" for one in runs])
        cells.append(["yes" if one.alarm else "no" for one in runs])
        lines.append(f"| {method} | " + " | ".join(", ".join(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _number(seconds: float, run: Figures) -> str:
    return f"not in {run.curve[-1][0]:.0f}" if math.isnan(seconds) else f"{seconds:.0f}"


def draw(figures: Mapping[str, Sequence[Figures]], goals: Sequence[float]) -> str:
    """Accuracy against seconds as SVG, with a line for each seed."""
    width, height, left, top, high = 560, 240, 50, 30, 1.0
    every = [run for runs in figures.values() for run in runs]
    longest = max(run.curve[-1][0] for run in every)
    lowest = math.floor(5 * min(accuracy for run in every for _, accuracy, _ in run.curve))
    low = lowest / 5

    def at(seconds: float, value: float) -> tuple[float, float]:
        share = (max(value, low) - low) / (high - low)
        return round(left + width * seconds / longest, 1), round(top + height * (1 - share), 1)

    parts = [f'<text x="{left}" y="16">accuracy on held-out prompts, drawn in 40 ODE steps</text>']
    for tick in (n / 5 for n in range(lowest, 6)):
        x, y = at(0, tick)
        parts.append(f'<line x1="{x}" x2="{x + width}" y1="{y}" y2="{y}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{tick:.1f}</text>')
    for goal in goals:
        x, y = at(0, goal)
        dashes = 'stroke="#57606a" stroke-dasharray="4 3"'
        parts.append(f'<line x1="{x}" x2="{x + width}" y1="{y}" y2="{y}" {dashes}/>')
    for seconds in range(0, int(longest) + 1, 60):
        x, y = at(seconds, low)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{seconds} s</text>')
    for number, (method, runs) in enumerate(figures.items()):
        colour = COLOURS[number]
        for run in runs:
            points = " ".join(f"{x},{y}" for x, y in (at(s, a) for s, a, _ in run.curve))
            style = f'fill="none" stroke="{colour}" stroke-width="1.6"'
            parts.append(f'<polyline points="{points}" {style}/>')
        x, y = at(longest, high)
        style = f'fill="{colour}" font-weight="600"'
        parts.append(f'<text x="{x + 12}" y="{y + 14 + 18 * number}" {style}>{method}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 100} {height + 60}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#57606a">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    main()
