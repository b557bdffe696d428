"""Time and memory of parsers and text rewards on 100,000 random texts and texts of a megabyte.

    python tests/benchmarks/parsers.py                # 100,000 texts for each parser
    python tests/benchmarks/parsers.py --texts 2000

Texts are mutations of completions: fragments of tags, numbers, scripts and surrogates are inserted,
repeated, cut and swapped; most are short, some have up to 20,000 characters. For each parser the
table has the processor seconds of all texts, of the slowest text with its length, and of the
slowest text of a megabyte, a repeated fragment; and the growth of the peak memory of the process.
An exception ends the benchmark.
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
from test_parsers import PARSERS, REWARDS

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
    parsers: dict[str, Callable[[str], Any]] = {**PARSERS}
    for name, (score, allowed) in REWARDS.items():
        parsers[name] = checked_parser(score, allowed)
    head = ("parser", "texts", "seconds", "slowest", "of", "of 1 MB", "MB")
    print("{:30} {:>9} {:>8} {:>9} {:>7} {:>8} {:>5}".format(*head))
    for name, parse in parsers.items():
        parse("a first sentence, which loads models and tables")
        before = peak_memory()
        started = time.process_time()
        slowest, length = max(timed(parse, text) for text in mutations(options.texts))
        seconds = time.process_time() - started
        largest, _ = max(timed(parse, megabyte_of(unit)) for unit in UNITS)
        print(
            f"{name:30} {options.texts:9,} {seconds:8.1f} {slowest:8.4f}s {length:7,} "
            f"{largest:7.2f}s {peak_memory() - before:5.0f}",
            flush=True,
        )


def checked_parser(
    score: Callable[[list[Any]], Any], allowed: Callable[[float | None], bool]
) -> Callable[[str], None]:
    """A reward as a parser of one text, which fails for a value that the docs do not allow."""

    def parse(text: str) -> None:
        (value,) = score([text])
        if not allowed(value):
            raise AssertionError(f"{value!r} for {text[:200]!r}")

    return parse


def timed(parse: Callable[[str], Any], text: str) -> tuple[float, int]:
    started = time.process_time()
    parse(text)
    return time.process_time() - started, len(text)


def megabyte_of(unit: str) -> str:
    return (unit * (MEGABYTE // len(unit) + 1))[:MEGABYTE]


def peak_memory() -> float:
    """The peak memory of the process, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def mutations(count: int) -> Iterator[str]:
    """So many texts, the same at every call."""
    chance = random.Random(0)
    for _ in range(count):
        text = chance.choice(SEEDS)
        for _ in range(chance.randrange(1, 8)):
            text = mutate(text, chance)[:LONGEST]
        yield text


def mutate(text: str, chance: random.Random) -> str:
    start, stop = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    kind = chance.randrange(6)
    if kind == 0:  # a fragment is inserted
        return text[:start] + chance.choice(FRAGMENTS) + text[start:]
    if kind == 1:  # a piece is removed
        return text[:start] + text[stop:]
    if kind == 2:  # a piece is repeated, rarely 200 times
        return text[:stop] + text[start:stop] * chance.choice((1, 2, 3, 200)) + text[stop:]
    if kind == 3:  # another text is inserted
        return text[:start] + chance.choice(SEEDS) + text[stop:]
    if kind == 4:  # random characters replace a piece
        characters = (chr(chance.randrange(0x110000)) for _ in range(chance.randrange(1, 20)))
        return text[:start] + "".join(characters) + text[stop:]
    return text[stop:] + text[:start]


if __name__ == "__main__":
    main()
