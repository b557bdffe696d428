"""Train `run.yaml` twice per seed, with a fixed judge and with one trained each step; draw both.

    python examples/iterative/curves.py --seeds 0 1 2 --jobs 2 --out runs/iterative
    python examples/iterative/curves.py --out runs/iterative --only-draw    # of finished runs

The judge is made first by `make_judge.py`, if needed. Each run has its own core. The outputs are
table.md, and picture.svg with three curves over held-out prompts: the fixed judge's score, the
verifier's score in the same run, and the verifier's score where the judge is trained.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

HERE = Path(__file__).parent
VARIANTS = {"left_alone": "rewards.0.every=0", "each_step": "rewards.0.every=1"}
CURVES = (
    ("left_alone", "evaluation/reward", "the judge, left alone", "#9a6700"),
    ("left_alone", "evaluation/watch/verifier", "the verifier; the judge left alone", "#cf222e"),
    ("each_step", "evaluation/watch/verifier", "the verifier; the judge learns", "#1a7f37"),
)


def train(out: Path, variant: str, seed: int, cores: SimpleQueue[int], more: Sequence[str]) -> None:
    """One run on a free core; its output goes into a file beside its folder."""
    core, folder = cores.get(), out / f"{variant}_seed{seed}"
    command = [
        *(sys.executable, "-m", "groupwise", "train", str(HERE / "run.yaml"), "--overwrite"),
        *(f"seed={seed}", f"output={folder.resolve()}", VARIANTS[variant]),
        *(f"rewards.0.model={(out / 'judge').resolve()}", *more),
    ]
    try:
        with folder.with_suffix(".log").open("w", encoding="utf-8") as log:
            subprocess.run(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )
    finally:
        cores.put(core)


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """(step, value) at each evaluation."""
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def alarm(folder: Path) -> int | None:
    """The first step with an alarm; None without any."""
    return next((step for step, value in curve(folder, "alarm/verifier") if value), None)


def table(out: Path, seeds: Sequence[int]) -> str:
    """Markdown, one line per variant, with the values of all seeds in order."""
    lines = [
        "| judge | its reward, before and after | verifier, the same | first alarm at step |",
        "|---|---|---|---|",
    ]
    for variant in VARIANTS:
        folders = [out / f"{variant}_seed{seed}" for seed in seeds]
        results = [json.loads((f / "result.json").read_text("utf-8")) for f in folders]
        changes = [
            ", ".join(f"{r['before'][name]:.2f} -> {r['after'][name]:.2f}" for r in results)
            for name in ("reward", "watch/verifier")
        ]
        alarms = ", ".join(str(alarm(folder) or "-") for folder in folders)
        lines.append(f"| {variant.replace('_', ' ')} | {' | '.join(changes)} | {alarms} |")
    return "\n".join([*lines, f"\nSeeds {', '.join(map(str, seeds))}; a dash: none.\n"])


def draw(out: Path, seeds: Sequence[int]) -> None:
    """Draw means over seeds, a thin line per seed, and a triangle at a run's first alarm."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for variant, name, title, colour in CURVES:
        folders = [out / f"{variant}_seed{seed}" for seed in seeds]
        curves: list[Mapping[int, float]] = [dict(curve(folder, name)) for folder in folders]
        for one in curves:
            axes.plot(one.keys(), one.values(), color=colour, linewidth=0.6, alpha=0.4)
        steps = sorted(set.intersection(*(set(one) for one in curves)))
        means = [statistics.mean(one[step] for one in curves) for step in steps]
        axes.plot(steps, means, color=colour, linewidth=2, label=title)
        if name.endswith("verifier"):
            raised = [
                (step, one[step])
                for folder, one in zip(folders, curves, strict=True)
                if (step := alarm(folder)) in one
            ]
            axes.plot(*zip(*raised, strict=True), "v", color=colour) if raised else None
    axes.plot([], [], "v", color="#57606a", label="first alarm of a run")
    axes.set(xlabel="step", ylabel="mean over held-out prompts", ylim=(0, 1))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out / "picture.svg", bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/iterative"))
    parser.add_argument("--only-draw", action="store_true", help="only draw finished runs")
    options, more = parser.parse_known_args()
    out, seeds = options.out, options.seeds
    if not options.only_draw:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "judge" / "config.json").exists():
            make = [sys.executable, str(HERE / "make_judge.py"), "--output", str(out / "judge")]
            subprocess.run(make, check=True)
        cores: SimpleQueue[int] = SimpleQueue()
        for core in sorted(os.sched_getaffinity(0))[: options.jobs]:
            cores.put(core)
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = [
                pool.submit(train, out, variant, seed, cores, more)
                for seed in seeds
                for variant in VARIANTS
            ]
        for run in runs:
            run.result()
    text = table(out, seeds)
    (out / "table.md").write_text(text, encoding="utf-8")
    draw(out, seeds)
    print(text)


if __name__ == "__main__":
    main()
