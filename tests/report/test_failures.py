"""What failed where, on the page of a run: one table, with the first reason of each."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_report import HOSTILE, page_of, sample, step_row, write_run

LATE = "the environment took longer than 5 s between two completions; `turn_deadline` allows more"
REASONS = [
    "reward 'helpful' got no answer within the `deadline` of its reward",
    "reward 'tests' failed in its sandbox: the server is gone",
    "the environment raised KeyError: 'shell' (line 3 of mine.py)",
    LATE,
    "its logits are not finite (seed 7)",
    "reward 'helpful' is broken",
]


def rows(run: Path) -> list[tuple[str, str, str]]:
    html, page = page_of(run)
    assert page.count("script") == 1
    assert page.count("img") == 0
    part = html.partition("<h2>What failed</h2>")[2].partition("</section>")[0]
    cells = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", part)
    return [tuple(re.sub("&#x27;|&#39;", "'", cell) for cell in row) for row in cells]


def test_what_failed_is_counted_by_place_with_a_sentence(tmp_path: Path) -> None:
    tools = {"environment/calls": 2.0, "environment/call_errors": 0.5}
    of_rewards = {"failed": 6.0, "failed/helpful": 4.0, "failed/tests": 2.0, **tools}
    of_episodes = {"failed/environment/KeyError": 1.0, "failed/environment/TimeoutError": 2.0}
    steps = [
        step_row(1, **of_rewards),
        step_row(2, failed=0.0, **tools | {"environment/call_errors": 0.1}),
        step_row(3, failed=5.0, **of_episodes),
        step_row(4, failed=3.0),
        step_row(5, **of_rewards),
    ]
    kept = [sample(n, "", right=False, failed=why) for n, why in enumerate(REASONS)]
    assert rows(write_run(tmp_path, steps, training=kept)) == [
        ("environment: KeyError", "1", REASONS[2]),
        ("environment: TimeoutError", "2", LATE),
        ("reward helpful", "8", REASONS[0]),
        ("reward tests", "4", REASONS[1]),
        ("completions", "3", REASONS[4]),
        (
            "tools",
            "18.3 % of calls",
            "were answered by an error, which the model reads: no episode fails",
        ),
    ]


def test_a_run_without_failures_has_no_such_table(tmp_path: Path) -> None:
    fine = {"failed": 0.0, "environment/calls": 1.0, "environment/call_errors": 0.0}
    _, page = page_of(write_run(tmp_path, [step_row(1, **fine)]))
    assert "What failed" not in page.text


@pytest.mark.parametrize("reason", [HOSTILE, None, 3, ["a"], "x" * 9000])
def test_odd_reasons_and_names_are_shown_as_text(tmp_path: Path, reason: Any) -> None:
    steps = [step_row(1, failed=2.0), step_row(2, **{f"failed/{HOSTILE}": 1.0})]
    kept = [sample(0, "", right=False, failed=reason)]
    shown = rows(write_run(tmp_path, steps, training=kept))
    assert len(shown) == 2
    assert all(len(cell) < 1000 for row in shown for cell in row)
