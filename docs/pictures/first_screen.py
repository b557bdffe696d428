"""The README's first picture: what a language model and an image model learn.

    groupwise train examples/arithmetic.yaml
    python docs/pictures/first_screen.py runs/arithmetic docs/pictures/first_screen.png

The lower half is docs/pictures/shapes.png, which before_after.py draws.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

SHAPES = Path(__file__).with_name("shapes.png")
GREY, BLUE, RED, GREEN = "#57606a", "#0969da", "#cf222e", "#1a7f37"


def main(run: Path, out: Path) -> None:
    plt.rcParams.update({"font.size": 9, "text.color": "#24292f"})
    figure = plt.figure(figsize=(10, 6.3), facecolor="white")
    grid = figure.add_gridspec(
        2, 3, height_ratios=(1, 1.75), width_ratios=(1.7, 1, 1), hspace=0.34, wspace=0.45
    )
    curves(figure.add_subplot(grid[0, 0]), run)
    before, after = pair(run)
    completion(figure.add_subplot(grid[0, 1]), "before: wrong", before, RED)
    completion(figure.add_subplot(grid[0, 2]), "after 60 steps: right", after, GREEN)
    shapes = figure.add_subplot(grid[1, :])
    shapes.imshow(plt.imread(SHAPES))
    shapes.axis("off")
    shapes.set_title(
        "A toy image model of 1.6M parameters, built like Stable Diffusion 3; framed red if wrong",
        loc="left",
        fontsize=10,
        fontweight="bold",
    )
    for name, middle in (("before", 0.68), ("after", 0.23)):
        shapes.text(-0.01, middle, name, transform=shapes.transAxes, ha="right", va="center")
    figure.savefig(out, dpi=160, bbox_inches="tight", metadata={"Software": None})


def curves(axes: Axes, run: Path) -> None:
    """Accuracy of the sampled completions, and their length beside it, against steps."""
    lines = [json.loads(x) for x in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    lines = [line for line in lines if line.get("accuracy") is not None]
    steps = [line["step"] for line in lines]
    axes.plot(steps, [line["accuracy"] for line in lines], color=BLUE)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("step", color=GREY)
    axes.set_ylabel("accuracy in training", color=BLUE)
    axes.set_title(
        "A toy language model of 0.8M parameters", loc="left", fontsize=10, weight="bold"
    )
    length = axes.twinx()
    length.plot(steps, [line["length"] for line in lines], color=GREY, linestyle="--")
    length.set_ylim(0, 60)
    length.set_ylabel("tokens in a completion", color=GREY)
    for side in (axes, length):
        side.spines["top"].set_visible(False)
        side.tick_params(colors=GREY)


def pair(run: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Samples of the first held-out prompt that was answered wrong before and right after."""
    before, after = (
        {
            sample["draw"]: sample
            for sample in map(json.loads, (run / "samples" / name).read_text("utf-8").splitlines())
            if not sample["greedy"]
        }
        for name in ("before.jsonl", "after.jsonl")
    )
    draw = next(
        draw
        for draw, sample in before.items()
        if not sample["right"] and draw in after and after[draw]["right"]
    )
    return before[draw], after[draw]


def completion(axes: Axes, title: str, sample: dict[str, str], colour: str) -> None:
    axes.axis("off")
    question = sample["prompt"].strip().rpartition(": ")[2]
    axes.text(0, 1.02, title, weight="bold", color=colour, transform=axes.transAxes)
    text = f"{question}\n\n{sample['completion']}"
    axes.text(
        *(0, 0.93),
        text,
        family="monospace",
        verticalalignment="top",
        linespacing=1.35,
        transform=axes.transAxes,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
