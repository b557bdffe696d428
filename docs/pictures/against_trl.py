"""A real model trained by TRL and by us: accuracy over steps, and over processor time.

    for seed in 0 1 2; do for side in ours trl; do
        python tests/benchmarks/curve_trl.py $side --device cpu --task sums --lora 16 --groups 8 \\
            --group 8 --length 24 --learning-rate 2e-4 --seed $seed --until 15 \\
            --points runs/curves/${side}_$seed.jsonl --work runs/curves/${side}_$seed
    done; done
    python docs/pictures/against_trl.py runs/curves docs/pictures/against_trl.svg
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

SIDES = {"ours": ("Groupwise", "#0969da"), "trl": ("TRL", "#bc4c00")}
OVER = {"step": "step", "seconds": "minutes of one CPU core"}
SMOOTH = 3
"""Steps whose mean is drawn."""


def main(folder: Path, out: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "groupwise"  # the same file for the same curves
    plt.rcParams.update({"font.size": 9, "text.color": "#24292f", "svg.fonttype": "none"})
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.8), sharey=True, facecolor="white")
    for panel, (key, title) in zip(panels, OVER.items(), strict=True):
        for side, (name, colour) in SIDES.items():
            for number, path in enumerate(sorted(folder.glob(f"{side}_*.jsonl"))):
                xs, ys = curve([*map(json.loads, path.read_text("utf-8").splitlines())], key)
                label = None if number else name
                panel.plot(xs, ys, color=colour, linewidth=1.2, label=label)
        panel.set_xlabel(title)
        panel.set_xlim(left=0)
        panel.set_ylim(0, 1)
        panel.grid(color="#d0d7de", linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("right completions of a step")
    panels[0].legend(frameon=False, loc="upper left")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def curve(
    points: Sequence[Mapping[str, float]], key: str
) -> tuple[Sequence[float], Sequence[float]]:
    """Moving means of accuracy, at the last of their steps; seconds as minutes."""
    scale = 60 if key == "seconds" else 1
    ends = range(1, len(points) + 1)
    means = [
        statistics.fmean(point["accuracy"] for point in points[max(0, end - SMOOTH) : end])
        for end in ends
    ]
    return [points[end - 1][key] / scale for end in ends], means


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
