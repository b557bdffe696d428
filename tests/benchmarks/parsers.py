"""How everything that reads what a model wrote takes 100,000 odd texts, and a megabyte of one.

    python tests/benchmarks/parsers.py                # 100,000 texts a reader, and the megabytes
    python tests/benchmarks/parsers.py --texts 2000

Texts are mutations of what models write: scraps of tags, numbers, scripts and surrogates spliced,
repeated, cut and swapped, mostly short, some of them up to 20,000 characters. The table has for
each reader the seconds for all, those of the slowest and its length, those of the slowest megabyte
of a hundred scraps repeated, and by how much the process's largest memory grew. Seconds are of
computing. An exception ends it.
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "attacks"))
from scraps import FRAGMENTS, UNITS
from test_parsers import READERS, REWARDS

SEEDS = (
    "<think>\nWe add 2 and 3, which makes 5.\n</think>\n<answer>\n5\n</answer>",
    "Step 1: 12 + 30 = 42.\nStep 2: 42 / 2 = 21.\nThe answer is **21**.",
    "Therefore $x^2 = 25$ and \\boxed{x = \\pm 5}.\n\n#### 5",
    "Wir addieren Zahlen. \u9996\u5148\u6211\u4eec\u52a0 \u0421\u043b\u043e\u0436\u0438\u043c.",
    "```python\nprint(2 + 3)\n```\nIt prints 5, i.e. 5.0 or 10/2 or 5e0.",
)
MEGABYTE, LONGEST = 1_000_000, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=100_000)
    options = parser.parse_args()
    readers: dict[str, Callable[[str], Any]] = {**READERS}
    for name, (score, allowed) in REWARDS.items():
        readers[name] = checked(score, allowed)
    head = ("reader", "texts", "seconds", "slowest", "of", "of 1 MB", "MB")
    print("{:30} {:>9} {:>8} {:>9} {:>7} {:>8} {:>5}".format(*head))
    for name, read in readers.items():
        read("a sentence that loads whatever there is to load")
        before = peak()
        started = time.process_time()
        slowest, length = max(timed(read, text) for text in mutations(options.texts))
        seconds = time.process_time() - started
        largest, _ = max(timed(read, repeated(unit)) for unit in UNITS)
        print(
            f"{name:30} {options.texts:9,} {seconds:8.1f} {slowest:8.4f}s {length:7,} "
            f"{largest:7.2f}s {peak() - before:5.0f}",
            flush=True,
        )


def checked(
    score: Callable[[list[Any]], Any], allowed: Callable[[float | None], bool]
) -> Callable[[str], None]:
    """A reward as a reader of one text, which fails for a value that the docs do not know."""

    def read(text: str) -> None:
        (value,) = score([text])
        if not allowed(value):
            raise AssertionError(f"{value!r} for {text[:200]!r}")

    return read


def timed(read: Callable[[str], Any], text: str) -> tuple[float, int]:
    started = time.process_time()
    read(text)
    return time.process_time() - started, len(text)


def repeated(unit: str) -> str:
    return (unit * (MEGABYTE // len(unit) + 1))[:MEGABYTE]


def peak() -> float:
    """The process's largest memory so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def mutations(count: int) -> Iterator[str]:
    """So many texts, the same at every call."""
    chance = random.Random(0)
    for _ in range(count):
        text = chance.choice(SEEDS)
        for _ in range(chance.randrange(1, 8)):
            text = mutated(text, chance)[:LONGEST]
        yield text


def mutated(text: str, chance: random.Random) -> str:
    start, stop = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    kind = chance.randrange(6)
    if kind == 0:  # a scrap put in
        return text[:start] + chance.choice(FRAGMENTS) + text[start:]
    if kind == 1:  # a piece left out
        return text[:start] + text[stop:]
    if kind == 2:  # a piece repeated, seldom often
        return text[:stop] + text[start:stop] * chance.choice((1, 2, 3, 200)) + text[stop:]
    if kind == 3:  # another text spliced in
        return text[:start] + chance.choice(SEEDS) + text[stop:]
    if kind == 4:  # a run of any characters
        drawn = (chr(chance.randrange(0x110000)) for _ in range(chance.randrange(1, 20)))
        return text[:start] + "".join(drawn) + text[stop:]
    return text[stop:] + text[:start]


if __name__ == "__main__":
    main()
