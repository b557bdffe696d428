"""Race: variants of one configuration, several seeds each, seconds of training to an accuracy.

A benchmark that compares ways to train is a file of a few lines beside this one: it names its
variants and calls `main`, which trains every variant with every seed by `groupwise train`, each run
in a process of its own on one thread, and writes a table, a picture and the figures.

    python tests/benchmarks/NAME.py --seeds 0 1 2 --jobs 2 --out runs/NAME
    python tests/benchmarks/NAME.py --out runs/NAME --only-draw       # of runs that are there

With `--jobs` above 1 each run has a core of its own. What is compared must have run at once, or
alone: seconds of a loaded machine are not those of a quiet one.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
WINDOW = 3
"""Steps whose mean accuracy must reach the goal; of evaluations each stands for itself."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """config: of all runs; variants: by title, what `groupwise train` is called with beside it;
    goal: accuracy to be reached; common: overrides of all variants; held_out: judge by evaluations
    (`evaluation.every`) and not by the training completions, for variants that draw other prompts;
    shown: by title of a column, what else of the last evaluation the table has; configs: of
    variants that have another configuration than `config`.
    """

    config: Path
    variants: Mapping[str, Sequence[str]]
    goal: float
    common: Sequence[str] = field(default_factory=tuple)
    held_out: bool = False
    shown: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def accuracy(self) -> str:
        """The metric that is judged."""
        return "evaluation/accuracy" if self.held_out else "accuracy"

    @property
    def window(self) -> int:
        return 1 if self.held_out else WINDOW


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run came to: NaN seconds and steps where it never reached the goal.

    curve: (steps, seconds of training, accuracy) wherever that was measured; accuracy: on held-out
    prompts after the last step; after: all of that evaluation.
    """

    seconds: float
    steps: float
    step: float
    accuracy: float
    curve: Sequence[tuple[int, float, float]]
    after: Mapping[str, float]


def main(race: Race) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, a core each")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs, table, picture")
    parser.add_argument("--variants", nargs="+", choices=race.variants, default=[*race.variants])
    parser.add_argument("--only-draw", action="store_true", help="of runs that are there")
    options, overrides = parser.parse_known_args()
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[: options.jobs]:
        cores.put(core)
    pairs = [(seed, title) for seed in options.seeds for title in options.variants]
    if not options.only_draw:
        one = partial(train, race, out=options.out, overrides=overrides, cores=cores)
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(one, *zip(*pairs, strict=True)))
    runs = {
        title: [read(folder(options.out, title, seed), race) for seed in options.seeds]
        for title in options.variants
    }
    text = table(runs, options.seeds, race.goal, race.shown)
    (options.out / "table.md").write_text(text, encoding="utf-8")
    draw(runs, race, options.out / "picture.svg")
    print(text)


def folder(out: Path, title: str, seed: int) -> Path:
    return out / f"{title.replace(' ', '_').replace('/', '_')}_seed{seed}"


def train(
    race: Race,
    seed: int,
    title: str,
    *,
    out: Path,
    overrides: Sequence[str],
    cores: SimpleQueue[int],
) -> None:
    """One run, on a core that is free; its output goes into a file beside its folder."""
    core, output = cores.get(), folder(out, title, seed)
    out.mkdir(parents=True, exist_ok=True)
    config = race.configs.get(title, race.config)
    command = [
        *(sys.executable, "-m", "groupwise", "train", str(config), "--overwrite"),
        *(f"seed={seed}", f"output={output.resolve()}"),
        *(*race.common, *race.variants[title], *overrides),
    ]
    try:
        with output.with_name(f"{output.name}.log").open("w", encoding="utf-8") as log:
            subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )
    finally:
        cores.put(core)


def read(run: Path, race: Race) -> Run:
    """Seconds count sampling, rewards and updates; evaluations do not."""
    lines = [json.loads(x) for x in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    lines = [line for line in lines if "time/update" in line]
    names = ("time/sample", "time/reward", "time/update")
    spent, curve = 0.0, []
    for line in lines:
        spent += sum(line.get(name) or 0.0 for name in names)
        if race.accuracy in line:
            curve.append((line["step"], spent, line[race.accuracy]))
    means = [accuracy for _, accuracy in smooth(curve, race.window)]
    reached = next((n for n in range(race.window - 1, len(curve)) if means[n] >= race.goal), None)
    after = json.loads((run / "result.json").read_text("utf-8"))["after"]
    return Run(
        seconds=math.nan if reached is None else curve[reached][1],
        steps=math.nan if reached is None else curve[reached][0],
        step=spent / max(1, len(lines)),
        accuracy=after.get("accuracy", math.nan),
        curve=curve,
        after=after,
    )


def table(
    runs: Mapping[str, Sequence[Run]],
    seeds: Sequence[int],
    goal: float,
    shown: Mapping[str, str] | None = None,
) -> str:
    """A line a variant; of several seeds all, in order."""
    shown = shown or {}
    titles = ["variant", f"seconds to {goal}", "steps", "seconds a step"]
    titles += ["accuracy after the last step", *shown]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for title, of_seeds in runs.items():
        columns = (
            [_number(run.seconds, ".0f") for run in of_seeds],
            [_number(run.steps, ".0f") for run in of_seeds],
            [_number(statistics.median(run.step for run in of_seeds), ".2f")],
            [_number(run.accuracy, ".3f") for run in of_seeds],
            *(
                [_number(run.after.get(k, math.nan), ".3g") for run in of_seeds]
                for k in shown.values()
            ),
        )
        lines.append(f"| {title} | " + " | ".join(", ".join(column) for column in columns) + " |")
    return "\n".join([*lines, f"\nSeeds {', '.join(map(str, seeds))}; a dash: not reached.\n"])


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def smooth(curve: Sequence[tuple[int, float, float]], window: int) -> list[tuple[float, float]]:
    """Seconds, and the mean of the last accuracies by then."""
    accuracies = [accuracy for _, _, accuracy in curve]
    return [
        (seconds, statistics.mean(accuracies[max(0, n - window + 1) : n + 1]))
        for n, (_, seconds, _) in enumerate(curve)
    ]


def draw(runs: Mapping[str, Sequence[Run]], race: Race, path: Path) -> None:
    """Accuracy against seconds of training; a thin line a seed."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    colours = plt.get_cmap("tab20").colors
    for number, (title, of_seeds) in enumerate(runs.items()):
        for first, run in zip([True, *[False] * len(of_seeds)], of_seeds, strict=False):
            axes.plot(
                *zip(*smooth(run.curve, race.window), strict=True),
                color=colours[number % len(colours)],
                linewidth=1,
                label=title if first else None,
            )
    axes.axhline(race.goal, color="#8c959f", linewidth=0.8, linestyle=":")
    axes.set(xlabel="seconds of training", ylabel="accuracy", ylim=(0, 1))
    axes.legend(frameon=False, fontsize=8, ncol=2)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
