"""Which stds of a group's rewards are noise: what a floor (`algorithm.least_std`) would leave out.

`record` trains a configuration and writes a line for every group: the std of its rewards and, if a
reward of the run learns from a verifier, how the rewards rank the completions that the verifier
accepts. `table` prints, for several floors and each quarter of the run, which share of the squared
advantages comes from groups below the floor, and how well the rewards of these groups rank.

    python tests/benchmarks/least_std.py record examples/arithmetic.yaml runs/std/arithmetic.jsonl
    python tests/benchmarks/least_std.py record examples/iterative/run.yaml runs/std/judge.jsonl \\
        seed=2 rewards.0.model=$PWD/runs/iterative/judge
    python tests/benchmarks/least_std.py table runs/std/judge.jsonl runs/std/arithmetic.jsonl
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

FLOORS = (0.0001, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2)
QUARTERS = 4
EPSILON = 1e-4
"""`algorithm.epsilon`, by which a std of nearly 0 is damped."""


def record(config: Path, out: Path, overrides: Sequence[str]) -> None:
    """Train; write one line for each group that an update was computed of."""
    from groupwise.algorithms.grpo import GRPO
    from groupwise.config.load import load_config
    from groupwise.learned import Learned
    from groupwise.run.train import train_from_config

    torch.set_num_threads(1)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as lines:
        recorder = Recorder(lines)
        recorder.follow(GRPO, "targets", recorder.rewards)
        recorder.follow(Learned, "refresh", recorder.labels)
        train_from_config(load_config(config, overrides), overwrite=True)
        recorder.flush()


class Recorder:
    """Writes the groups of an update when the next one begins, as their labels come after it."""

    def __init__(self, lines: TextIO) -> None:
        self.lines, self.update = lines, 0
        self.groups: dict[int, dict[str, Any]] = {}
        self.values: dict[int, torch.Tensor] = {}

    def follow(self, owner: type, name: str, before: Callable[..., None]) -> None:
        """Call `before` with the arguments of a method at each call of it."""
        method = getattr(owner, name)

        def followed(itself: Any, *arguments: Any) -> Any:
            before(*arguments)
            return method(itself, *arguments)

        setattr(owner, name, followed)

    def rewards(self, scores: Any, rollouts: Any, _: Any) -> None:
        self.flush()
        for number in rollouts.groups.unique().tolist():
            values = self.values[number] = scores.outcome[rollouts.groups == number]
            known = values[~values.isnan()]
            self.groups[number] = {
                "update": self.update,
                "size": len(known),
                # Exactly 0 for equal rewards, which the computed std may not be.
                "std": float(known.std()) if len(known.unique()) > 1 else 0.0,
            }
        self.update += 1

    def labels(self, rollouts: Any, scores: Any) -> None:
        for number in rollouts.groups.unique().tolist():
            right = scores.values[rollouts.groups.cpu() == number, 0] == 1
            values = self.values[number]
            margins = values[right].unsqueeze(1) - values[~right]
            better = (margins > 0).sum() + (margins == 0).sum() / 2
            pairs = {"right": int(right.sum()), "pairs": margins.numel(), "better": float(better)}
            self.groups[number] |= pairs

    def flush(self) -> None:
        for group in self.groups.values():
            self.lines.write(json.dumps(group) + "\n")
        self.groups.clear()
        self.lines.flush()


def table(paths: Iterable[Path]) -> None:
    """Print quantiles of the stds above 0 and, by floor, what is below it."""
    for path in paths:
        groups = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if not groups:
            continue
        updates = 1 + max(group["update"] for group in groups)
        stds = torch.tensor([group["std"] for group in groups if group["std"]])
        low = [f"{value:.4f}" for value in stds.quantile(torch.tensor([0.0, 0.1, 0.5])).tolist()]
        print(f"\n{path.stem}: {len(groups)} groups of {updates} updates, {len(stds)} with a std")
        print(f"above 0, of which the least, a tenth and half are at most {', '.join(low)}\n")
        print("| floor | squared advantages below it, by quarter | ranked right below, above it |")
        print("|---|---|---|")
        for floor in FLOORS:
            shares = [
                share_below(floor, [g for g in groups if g["update"] * QUARTERS // updates == n])
                for n in range(QUARTERS)
            ]
            below = [group for group in groups if 0 < group["std"] < floor]
            above = [group for group in groups if group["std"] >= floor]
            ranked = f"{ranking(below)}, {ranking(above)}"
            print(f"| {floor} | {', '.join(f'{share:.0%}' for share in shares)} | {ranked} |")


def share_below(floor: float, groups: Sequence[Mapping[str, Any]]) -> float:
    """The share of the squared advantages that comes from groups whose std is below the floor."""
    squares = [(g["size"] - 1) * (g["std"] / (g["std"] + EPSILON)) ** 2 for g in groups]
    below = sum(x for x, g in zip(squares, groups, strict=True) if g["std"] < floor)
    return below / max(1e-9, sum(squares))


def ranking(groups: Sequence[Mapping[str, Any]]) -> str:
    """The share of pairs, one right and one wrong of a group, in which the reward of the right one
    is higher; a dash without a verifier or such pairs."""
    pairs = sum(group.get("pairs", 0) for group in groups)
    return f"{sum(group['better'] for group in groups) / pairs:.2f} ({pairs})" if pairs else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record")
    recording.add_argument("config", type=Path)
    recording.add_argument("out", type=Path)
    recording.add_argument("overrides", nargs="*")
    actions.add_parser("table").add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args()
    if options.action == "record":
        record(options.config, options.out, options.overrides)
    else:
        table(options.paths)


if __name__ == "__main__":
    main()
