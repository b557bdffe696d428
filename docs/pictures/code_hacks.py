"""What a policy writes that is trained on `code_tests`, and on a reward that runs programs itself.

    metrics="--metrics accuracy greedy_accuracy rewards/naive rewards/hack"
    python examples/three_seeds.py examples/code_hacks.yaml $metrics
    python examples/three_seeds.py examples/code_hacks.yaml --name code_hacks_naive \\
        rewards.0.weight=0 rewards.1.weight=1 $metrics
    python docs/pictures/code_hacks.py runs docs/pictures/code_hacks.svg
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

RUNS = {
    "code_hacks": "trained on code_tests",
    "code_hacks_naive": "trained on a reward that runs programs itself",
}
KINDS = {"rewards/code_tests": ("right", "#1a7f37"), "rewards/hack": ("cheats", "#cf222e")}


def main(folder: Path, out: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "groupwise"  # the same file for the same runs
    plt.rcParams.update({"font.size": 9, "text.color": "#24292f", "svg.fonttype": "none"})
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.8), sharey=True, facecolor="white")
    for panel, (name, title) in zip(panels, RUNS.items(), strict=True):
        for number, run in enumerate(sorted(folder.glob(f"{name}_seed[0-9]"))):
            lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
            steps = [step for step in map(json.loads, lines) if "rewards/hack" in step]
            for key, (label, colour) in KINDS.items():
                panel.plot(
                    [step["step"] for step in steps],
                    [step[key] for step in steps],
                    color=colour,
                    linewidth=1.2,
                    label=None if number else label,
                )
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("step")
        panel.set_ylim(0, 1)
        panel.grid(color="#d0d7de", linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share of a step's programs")
    panels[0].legend(frameon=False, loc="center right")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
