"""The page of a long run: its size, its lines, and which of its completions it shows."""

import json
import re
from html import unescape

import pytest
from tests.report import long_run
from tests.report.test_report import Page

from groupwise_report.charts import MOST_VALUES, averaged
from groupwise_report.completion_table import MOST_EXTREME, MOST_STEPS
from groupwise_report.writing import write_report

STEPS = 2_000


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """tests/benchmarks/long_page.py measures the page of 10,000 steps."""
    folder = long_run.write(tmp_path_factory.mktemp("long"), steps=STEPS, prompts=100)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def html(run):
    return (run / "report.html").read_text("utf-8")


def test_the_page_does_not_grow_with_the_steps(html):
    assert len(html) < 3_000_000
    charts = [json.loads(unescape(found)) for found in re.findall('data-series="(.*?)"', html)]
    assert len(charts) > 15
    assert max(len(points) for chart in charts for points in chart) == MOST_VALUES


def test_the_mean_of_a_line_is_kept():
    points = [(float(n), float(n * n)) for n in range(3 * MOST_VALUES)]
    kept = averaged(points)
    assert len(kept) == MOST_VALUES
    mean = sum(y for _, y in points) / len(points)
    assert sum(y for _, y in kept) / len(kept) == pytest.approx(mean)
    assert averaged(points[:7]) == points[:7]
    assert averaged([]) == []


def test_the_most_extreme_completions_are_in_the_table(run, html):
    lines = (run / "samples" / "training.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    trained = [a for tag, a in Page(html).tags if tag == "tr" and a.get("data-when") == "training"]
    steps = {int(str(a["data-step"])) for a in trained}
    totals = sorted(row["total"] for row in rows)
    lengths = sorted(row["length"] for row in rows)
    low, high, long = totals[MOST_EXTREME - 1], totals[-MOST_EXTREME], lengths[-MOST_EXTREME]
    extreme = [row for row in rows if not low < row["total"] < high or row["length"] > long]
    assert {row["step"] for row in extreme} <= steps
    assert {1, STEPS - 1} <= steps  # the first and the last that is kept, of every second
    assert MOST_STEPS <= len(steps) <= MOST_STEPS + 3 * MOST_EXTREME
    assert len(trained) <= 4 * MOST_STEPS + 3 * MOST_EXTREME
