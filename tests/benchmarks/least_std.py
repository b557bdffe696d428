"""The std of the rewards of every group of a run, and what a floor for it would leave out.

`record` trains a configuration and writes, for every group, the std of its rewards and, if a reward
of the run learns from a verifier, how many of its completions that verifier accepts. `table` counts
what each floor (`algorithm.least_std`) would leave out. One thread, a few minutes each:

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

FLOORS = (0.0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
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
        loaded = load_config(config, ["algorithm.least_std=0", *overrides])
        train_from_config(loaded, overwrite=True)
        recorder.flush()


class Recorder:
    """Writes the groups of an update when the next one begins, as their labels come after it."""

    def __init__(self, lines: TextIO) -> None:
        self.lines, self.update = lines, 0
        self.groups: dict[int, dict[str, Any]] = {}

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
            values = scores.outcome[rollouts.groups == number]
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
            labels = scores.values[rollouts.groups.cpu() == number, 0]
            self.groups[number]["right"] = int((labels == 1).sum())

    def flush(self) -> None:
        for group in self.groups.values():
            self.lines.write(json.dumps(group) + "\n")
        self.groups.clear()
        self.lines.flush()


def table(paths: Iterable[Path]) -> None:
    """Print quantiles of the stds above 0, and what each floor leaves out."""
    for path in paths:
        groups = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        by_kind = kinds(groups)
        print(f"\n{path.stem}: {len(groups)} groups\n")
        print("| groups | number | equal rewards | 1%, 10%, 50%, 90% of the stds above 0 |")
        print("|---|---|---|---|")
        for name, members in by_kind.items():
            above = torch.tensor([g["std"] for g in members if g["std"]])
            at = above.quantile(torch.tensor([0.01, 0.1, 0.5, 0.9])).tolist() if len(above) else []
            shown = ", ".join(f"{value:.4f}" for value in at)
            print(f"| {name} | {len(members)} | {len(members) - len(above)} | {shown} |")
        print(f"\n| floor | squared advantages: {', '.join(by_kind)} | groups below it |")
        print("|---|---|---|")
        for floor in FLOORS:
            squares = {n: sum(square(g, floor) for g in members) for n, members in by_kind.items()}
            shares = [value / max(1e-9, sum(squares.values())) for value in squares.values()]
            below = [
                sum(0 < g["std"] < floor for g in members) / max(1, len(members))
                for members in by_kind.values()
            ]
            print(f"| {floor} | {percent(shares)} | {percent(below)} |")


def kinds(groups: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The groups by what the verifier says of them; all in one if there is no verifier."""
    if "right" not in groups[0]:
        return {"all": [*groups]}
    return {
        "all right": [g for g in groups if g["right"] == g["size"]],
        "all wrong": [g for g in groups if not g["right"]],
        "mixed": [g for g in groups if 0 < g["right"] < g["size"]],
    }


def square(group: Mapping[str, Any], floor: float) -> float:
    """The sum of A^2 over a group, with A = (r - mean) / (std + epsilon), 0 below the floor."""
    std, size = group["std"], group["size"]
    return 0.0 if std < floor else float((size - 1) * (std / (std + EPSILON)) ** 2)


def percent(shares: Iterable[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares)


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
