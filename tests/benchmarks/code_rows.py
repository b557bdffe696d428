"""How many rows of files `code_tests` can read, and how many of their own solutions it pays.

    git clone https://github.com/KodCode-AI/kodcode
    python tests/benchmarks/code_rows.py kodcode/demo/*.json

A file is a list of rows as JSON, with the columns of a data set. Equal rows count once.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from groupwise.rewards import SampleErrors
from groupwise_code.reward import CodeTests


def outcome(reward: CodeTests, row: dict[str, Any]) -> str:
    """What becomes of a row, in words."""
    try:
        gold = reward.gold_completion(row)
        if gold is None:
            return "has no solution"
        logged = dict[str, Any]()
        columns = {name: [value] for name, value in row.items()}
        (value,) = reward([""], [gold], log_extra=logged.__setitem__, **columns)
    except SampleErrors as error:
        return f"failed: {error.errors[0]:.70}"
    except ValueError as error:
        return f"refused: {error!s:.70}"
    return "paid" if value == 1 else f"not paid: test {logged['failed_tests'][0]:.70}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--modules", nargs="*", default=["pytest"])
    options = parser.parse_args()
    columns = ("test", "test_code", "solution", "entry_point")
    rows = {
        json.dumps(row): row
        for path in options.files
        for each in json.loads(path.read_text())
        if (row := {name: each[name] for name in columns if each.get(name)})
    }
    reward = CodeTests(CodeTests.Config(timeout=3, modules=tuple(options.modules)))
    counts = Counter(outcome(reward, row) for row in rows.values())
    reward.close()
    print(f"{len(rows)} rows")
    for words, count in counts.most_common():
        print(f"{count:6} {words}")


if __name__ == "__main__":
    main()
