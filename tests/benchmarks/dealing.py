"""How much more the fullest process has to do than the mean, as sampled and as dealt.

    python tests/benchmarks/dealing.py

Groups of 16 are sampled whole, in turn, by the processes. Lengths are exponential, cut, and
correlated within a group: the mean of a prompt is itself lognormal. Means of 20 steps.
"""

import random
from statistics import mean

from groupwise.learning.dealing import loads, places

LENGTHS = {"1.5k, cut at 4k": (1500, 4096, 0.5), "6k, cut at 32k": (6000, 32768, 0.6)}
SIZES = ((8, 128), (64, 128), (512, 512))


def main() -> None:
    print("| processes | groups | lengths | as sampled | dealt | rollouts that move |")
    print("|---|---|---|---|---|---|")
    for processes, groups in SIZES:
        for name, (length, cut, spread) in LENGTHS.items():
            runs = [_one(seed, processes, groups, length, cut, spread) for seed in range(20)]
            sampled, dealt, share = (mean(column) for column in zip(*runs, strict=True))
            print(
                f"| {processes} | {groups} | {name} | {sampled:.2f} | {dealt:.2f} | {share:.0%} |"
            )


def _one(
    seed: int, processes: int, groups: int, length: float, cut: int, spread: float
) -> tuple[float, float, float]:
    """The fullest process over the mean, as sampled and as dealt; the share that moves."""
    drawn = random.Random(seed)
    costs: list[list[float]] = [[] for _ in range(processes)]
    for group in range(groups):
        scale = length * drawn.lognormvariate(-(spread**2) / 2, spread)
        costs[group % processes] += [
            min(cut, max(16, drawn.expovariate(1 / scale))) for _ in range(16)
        ]
    average = sum(map(sum, costs)) / processes
    chosen = places(costs)
    here = [[process] * len(row) for process, row in enumerate(costs)]
    moving = sum(p != home for home, row in enumerate(chosen) for p in row)
    return (
        max(loads(costs, here)) / average,
        max(loads(costs, chosen)) / average,
        moving / sum(map(len, costs)),
    )


if __name__ == "__main__":
    main()
