"""Curves of metrics over the steps of several seeds.

    python docs/pictures/curves.py safety runs docs/pictures/safety.svg
    python docs/pictures/curves.py code_hacks runs docs/pictures/code_hacks.svg
    python docs/pictures/curves.py recolor runs docs/pictures/recolor_curves.svg

The first argument names what is drawn, the second is the folder that `examples/three_seeds.py`
writes; its commands stand beside the pictures, in docs/examples.md and docs/code.md.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

BLUE, GREEN, RED, GREY = "#0969da", "#1a7f37", "#cf222e", "#57606a"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """runs: {a run's name without its seed: the title of its panel}; kinds: {metric: what it is,
    and its colour}; bound: of a constraint, if there is one."""

    runs: Mapping[str, str]
    kinds: Mapping[str, tuple[str, str]]
    shares: str
    bound: float | None = None
    legend: str = "lower right"


PICTURES = {
    "safety": Picture(
        runs={"safety": ""},
        kinds={
            "evaluation/watch/answered": ("harmless requests that are answered", BLUE),
            "evaluation/watch/refused": ("harmful requests that are refused", GREEN),
        },
        shares="share, held out",
        bound=0.95,
    ),
    "code_hacks": Picture(
        runs={
            "code_hacks": "trained on code_tests",
            "code_hacks_naive": "trained on a reward that runs programs itself",
        },
        kinds={"rewards/code_tests": ("right", GREEN), "rewards/hack": ("cheats", RED)},
        shares="share of a step's programs",
        legend="center right",
    ),
    "recolor": Picture(
        runs={"recolor": "with the constraint", "recolor_free": "without it"},
        kinds={
            "evaluation/rewards/follows": ("the instruction is followed", BLUE),
            "evaluation/rewards/unchanged": ("the rest is unchanged", GREEN),
        },
        shares="mean reward, held out",
        bound=0.9,
    ),
}


def main(picture: Picture, folder: Path, out: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "groupwise"  # the same file for the same runs
    plt.rcParams.update({"font.size": 9, "text.color": "#24292f", "svg.fonttype": "none"})
    size = (3 + 3 * len(picture.runs), 2.8)
    figure, panels = plt.subplots(
        1, len(picture.runs), figsize=size, sharey=True, squeeze=False, facecolor="white"
    )
    for panel, (name, title) in zip(panels[0], picture.runs.items(), strict=True):
        if picture.bound is not None:
            label = f"the bound, {picture.bound}"
            panel.axhline(picture.bound, color=GREY, linewidth=0.8, linestyle=":", label=label)
        for number, run in enumerate(sorted(folder.glob(f"{name}_seed[0-9]"))):
            curves(panel, run, picture.kinds, named=number == 0)
        panel.set(xlabel="step", ylim=(0, 1.02))
        panel.set_title(title, fontsize=9)
        panel.grid(color="#d0d7de", linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel(picture.shares)
    panels[0, 0].legend(frameon=False, loc=picture.legend)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def curves(panel: Any, run: Path, kinds: Mapping[str, tuple[str, str]], *, named: bool) -> None:
    """Draw the curves of a run; named: with their labels."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    steps = [line for line in lines if next(iter(kinds)) in line]
    for key, (label, colour) in kinds.items():
        panel.plot(
            [step["step"] for step in steps],
            [step[key] for step in steps],
            color=colour,
            linewidth=1.2,
            label=label if named else None,
        )


if __name__ == "__main__":
    main(PICTURES[sys.argv[1]], *map(Path, sys.argv[2:]))
