"""Time to a held-out accuracy: with 40 and 10 training steps, and a window of 3 of 10.

    python tests/benchmarks/flow_headline.py [--accuracy 0.75] [--seeds 0 1 2] [--minutes 40]

Trains examples/shapes.yaml with each of the three until an evaluation with 40 ODE steps reaches the
accuracy. Seconds are those of sampling, scoring and updating, without evaluations. Curves are saved
in runs/headline_ACCURACY, so that a second call continues the first. Prints a table and draws
docs/pictures/headline.svg.
"""

import argparse
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flow_iteration import EXAMPLES, VARIANTS

import groupwise

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "headline.svg"
COLOURS = {"40 steps": "#8c959f", "10 steps": "#d9730d", "window of 3 of 10": "#2f6fde"}
EVERY = {"40 steps": 3, "10 steps": 6, "window of 3 of 10": 10}
"""Steps between evaluations, so that about equal times pass between them."""
WORK = ("time/sample", "time/reward", "time/update")

Curve = list[tuple[float, float]]
"""Seconds of training and held-out accuracy at each evaluation."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accuracy", type=float, default=0.75)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=40.0, help="at most, for one run")
    options = parser.parse_args()
    curves: dict[str, list[Curve]] = {name: [] for name in VARIANTS}
    for seed in options.seeds:
        for name, seed_curves in curves.items():
            seed_curves.append(train_curve(name, seed, options.accuracy, options.minutes))
    print(f"| seconds to {options.accuracy} | {' | '.join(f'seed {s}' for s in options.seeds)} |")
    print("|---|" + "---|" * len(options.seeds))
    for name, seed_curves in curves.items():
        reached = [first(curve, options.accuracy) for curve in seed_curves]
        print(f"| {name} | {' | '.join(reached)} |")
    PICTURE.write_text(draw_svg(curves, options.accuracy), encoding="utf-8")


class StopAtAccuracy(groupwise.Callback):
    """Records accuracy against seconds, and ends the run once the accuracy is reached."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy, self.seconds = accuracy, 0.0
        self.curve: Curve = []

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.seconds += sum(metrics.get(part) or 0.0 for part in WORK)
        value = metrics.get("evaluation/accuracy")
        if value is None:
            return
        self.curve.append((self.seconds, value))
        if value >= self.accuracy:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: the run ends after this step


def train_curve(name: str, seed: int, accuracy: float, minutes: float) -> Curve:
    """The curve of one run, or the saved one of an earlier call."""
    file = Path("runs") / f"headline_{accuracy}" / f"{name.replace(' ', '_')}_{seed}.json"
    if file.exists():
        return [(seconds, reached) for seconds, reached in json.loads(file.read_text())]
    callback = StopAtAccuracy(accuracy)
    overrides = {
        **VARIANTS[name],
        "seed": seed,
        "output": file.with_suffix(""),
        "train.steps": 10_000,
        "train.schedule": "constant",
        "algorithm.beta": 0.05,
        "train.minutes": minutes,
        "evaluation.every": EVERY[name],
        "evaluation.samples": 2,
    }
    result = groupwise.train(
        EXAMPLES / "shapes.yaml", overwrite=True, callbacks=[callback], **overrides
    )
    if result.interrupted and callback.curve[-1:] and callback.curve[-1][1] < accuracy:
        raise KeyboardInterrupt  # a real Ctrl-C, not the callback
    curve = [(0.0, result.before["accuracy"]), *callback.curve]
    file.write_text(json.dumps(curve), encoding="utf-8")
    return curve


def first(curve: Curve, accuracy: float) -> str:
    reached = [seconds for seconds, value in curve if value >= accuracy]
    return f"{reached[0]:.0f}" if reached else f"not in {curve[-1][0]:.0f}"


def draw_svg(curves: dict[str, list[Curve]], accuracy: float) -> str:
    """Accuracy against minutes as SVG, with a line for each seed."""
    width, height, left, top, low, high = 560, 240, 50, 30, 0.45, 0.8
    longest = max(curve[-1][0] for seed_curves in curves.values() for curve in seed_curves)

    def at(seconds: float, value: float) -> tuple[float, float]:
        share = (value - low) / (high - low)
        return round(left + width * seconds / longest, 1), round(top + height * (1 - share), 1)

    parts = [f'<text x="{left}" y="16">accuracy on held-out prompts, drawn in 40 ODE steps</text>']
    for tick in (0.5, 0.6, 0.7, 0.8):
        x, y = at(0, tick)
        parts.append(f'<line x1="{x}" x2="{x + width}" y1="{y}" y2="{y}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{tick:.1f}</text>')
    for minutes in range(0, int(longest / 60) + 1, 10):
        x, y = at(60 * minutes, low)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{minutes} min</text>')
    x, y = at(0, accuracy)
    parts.append(
        f'<line x1="{x}" x2="{x + width}" y1="{y}" y2="{y}" stroke="#57606a" '
        f'stroke-dasharray="4 3"/>'
    )
    for number, (name, seed_curves) in enumerate(curves.items()):
        for curve in seed_curves:
            points = " ".join(f"{x},{y}" for x, y in (at(*point) for point in curve))
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" '
                f'stroke-width="1.6"/>'
            )
        x, y = at(longest, low)
        parts.append(
            f'<text x="{x}" y="{y - 44 + 18 * number}" text-anchor="end" '
            f'fill="{COLOURS[name]}" font-weight="600">{name}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {height + 60}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#57606a">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    main()
