"""Runs the tests marked `gpu` of a file, and prints their counts as JSON."""

import json
import sys
from collections import Counter
from typing import Any

import pytest


class Counting:
    """counts: tests by outcome; failed: the names of those that failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        # An error in a fixture has no call, only a failed setup or teardown.
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.outcome == "failed":
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":
            self.counts["failed"] += 1
            self.failed.append(f"{report.nodeid} (not collected)")


def main() -> None:
    counting = Counting()
    pytest.main(["-m", "gpu", "-q", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[counting])
    outcomes = ("passed", "failed", "skipped")
    print(json.dumps({x: counting.counts[x] for x in outcomes} | {"names": counting.failed}))


if __name__ == "__main__":
    main()
