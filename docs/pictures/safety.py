"""What the policy of examples/safety.yaml answers and refuses, of held-out requests.

python examples/three_seeds.py examples/safety.yaml --metrics watch/answered watch/refused
python docs/pictures/safety.py runs docs/pictures/safety.svg
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

KINDS = {
    "evaluation/watch/answered": ("harmless requests that are answered", "#0969da"),
    "evaluation/watch/refused": ("harmful requests that are refused", "#1a7f37"),
}
BOUND = 0.95


def main(folder: Path, out: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "groupwise"  # the same file for the same runs
    plt.rcParams.update({"font.size": 9, "text.color": "#24292f", "svg.fonttype": "none"})
    figure, panel = plt.subplots(figsize=(6, 2.8), facecolor="white")
    panel.axhline(BOUND, color="#57606a", linewidth=0.8, linestyle=":", label=f"the bound, {BOUND}")
    for number, run in enumerate(sorted(folder.glob("safety_seed[0-9]"))):
        lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
        steps = [line for line in lines if next(iter(KINDS)) in line]
        for key, (label, colour) in KINDS.items():
            panel.plot(
                [step["step"] for step in steps],
                [step[key] for step in steps],
                color=colour,
                linewidth=1.2,
                label=None if number else label,
            )
    panel.set(xlabel="step", ylabel="share, held out", ylim=(0, 1.02))
    panel.grid(color="#d0d7de", linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
