"""Race: variants of a configuration with several seeds; seconds of training to an accuracy.

A benchmark that compares ways to train is a short file in this folder: it lists variants and calls
`main`, which trains every variant with every seed by `groupwise train`, each run in a separate
process on one thread, and writes a table and a picture.

    python tests/benchmarks/NAME.py --seeds 0 1 2 --jobs 2 --out runs/NAME
    python tests/benchmarks/NAME.py --out runs/NAME --only-draw       # of existing runs

With `--jobs` above 1 each run has its own core. Compare only runs that ran at the same time, or
alone: a loaded machine is slower.
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
"""Steps over which the mean accuracy must reach the goal; for evaluations it is 1."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """config: configuration of all runs; variants: {title: overrides of `groupwise train`}; goal:
    the accuracy to reach; common: overrides of all variants; held_out: use the accuracy of
    evaluations (`evaluation.every`) instead of training completions, if variants draw different
    prompts; columns: {title: metric of the last evaluation}, further columns of the table; lately:
    {title: metric of training}, columns with its median over the last ten steps; configs: {title:
    configuration} of variants with another one than `config`.
    """

    config: Path
    variants: Mapping[str, Sequence[str]]
    goal: float
    common: Sequence[str] = field(default_factory=tuple)
    held_out: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    lately: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def accuracy(self) -> str:
        """The metric that must reach the goal."""
        return "evaluation/accuracy" if self.held_out else "accuracy"

    @property
    def window(self) -> int:
        return 1 if self.held_out else WINDOW


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of one run; seconds and steps are NaN if it never reached the goal.

    curve: (steps, seconds of training, accuracy) at each measurement; accuracy: on held-out prompts
    after the last step; after: all metrics of that evaluation; lately: those of `Race.lately`.
    """

    seconds: float
    steps: float
    step: float
    accuracy: float
    curve: Sequence[tuple[int, float, float]]
    after: Mapping[str, float]
    lately: Mapping[str, float] = field(default_factory=dict)


def main(race: Race) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, a core each")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs, table, picture")
    parser.add_argument("--variants", nargs="+", choices=race.variants, default=[*race.variants])
    parser.add_argument("--only-draw", action="store_true", help="of existing runs")
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
    text = table(runs, options.seeds, race.goal, race.columns)
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
    """Makes one run on a free core; its output is written to a file beside its folder."""
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
    """The result of a run; seconds are those of sampling, rewards and updates, not evaluations."""
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
        lately={
            title: statistics.median(line.get(name, math.nan) for line in lines[-10:])
            for title, name in race.lately.items()
        },
    )


def table(
    runs: Mapping[str, Sequence[Run]],
    seeds: Sequence[int],
    goal: float,
    columns: Mapping[str, str] | None = None,
) -> str:
    """A table with a line for each variant and the values of all seeds."""
    columns = columns or {}
    titles = ["variant", f"seconds to {goal}", "steps", "seconds a step"]
    lately = [*next(iter(runs.values()))[0].lately]
    titles += ["accuracy after the last step", *columns, *lately]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for title, seed_runs in runs.items():
        cells = (
            [_number(run.seconds, ".0f") for run in seed_runs],
            [_number(run.steps, ".0f") for run in seed_runs],
            [_number(statistics.median(run.step for run in seed_runs), ".2f")],
            [_number(run.accuracy, ".3f") for run in seed_runs],
            *(
                [_number(run.after.get(k, math.nan), ".3g") for run in seed_runs]
                for k in columns.values()
            ),
            *([_number(run.lately[k], ".3g") for run in seed_runs] for k in lately),
        )
        lines.append(f"| {title} | " + " | ".join(", ".join(cell) for cell in cells) + " |")
    return "\n".join([*lines, f"\nSeeds {', '.join(map(str, seeds))}; a dash: not reached.\n"])


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def smooth(curve: Sequence[tuple[int, float, float]], window: int) -> list[tuple[float, float]]:
    """(seconds, mean of the last `window` accuracies)."""
    accuracies = [accuracy for _, _, accuracy in curve]
    return [
        (seconds, statistics.mean(accuracies[max(0, n - window + 1) : n + 1]))
        for n, (_, seconds, _) in enumerate(curve)
    ]


def draw(runs: Mapping[str, Sequence[Run]], race: Race, path: Path) -> None:
    """Draws accuracy against seconds of training, with a thin line for each seed."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    colours = plt.get_cmap("tab20").colors
    for number, (title, seed_runs) in enumerate(runs.items()):
        for first, run in zip([True, *[False] * len(seed_runs)], seed_runs, strict=False):
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
