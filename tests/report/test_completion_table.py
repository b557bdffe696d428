"""Parts of the page on single completions: the table, histograms, and how the run was made."""

import json
import math
import random
import re
from typing import Any

import numpy as np
import pytest
from tests.report.test_report import HOSTILE, page_of, sample, titles, write_run

from groupwise_report import images
from groupwise_report.histogram import bins_of, histogram


def kept(step: int, completion: Any, *chosen: str, **fields: Any) -> dict[str, Any]:
    """A line of samples/training.jsonl."""
    row = sample(0, completion, right=False, step=step, chosen=[*chosen], total=0.25, index=0)
    return {**row, "group": {"mean": 0.5, "std": 0.125}, "advantage": -1.5, "length": 7, **fields}


def with_training(folder, *rows: dict[str, Any], **options: Any):
    run = write_run(folder, [{"step": 1, "reward": 0.5}], **options)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run / "samples" / "training.jsonl").write_text(text)
    return page_of(run)


def test_a_completion_of_training_has_its_advantage_and_rewards_by_part(tmp_path):
    rewards = {"correct": 0.0, "format": 0.5}
    html, page = with_training(tmp_path, kept(1, "a guess", "worst", "longest", rewards=rewards))
    (row,) = re.findall("<tr data-when.*?</tr>", html)
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    minus = "\N{MINUS SIGN}"
    assert cells == ["1", "worst, longest", "0.25", "0", "0.5", f"{minus}1.5", "7"]
    assert "mean of its group 0.5standard deviation 0.125" in page.text
    assert page.text.count("question 0") == 1
    assert "has 1 completion of 1 step; here are all" in page.text


def test_images_of_training_are_shown_and_those_of_evaluations_only_once(tmp_path):
    pytest.importorskip("PIL")
    from PIL import Image

    (tmp_path / "samples").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (9, 9)).save(tmp_path / "samples" / f"{name}.png")
    own = kept(1, "", "best", image="samples/b.png")
    after = [sample(1, "", right=True, image="samples/a.png")]
    html, page = with_training(tmp_path, own, after=after)
    assert page.count("img") == 2
    assert html.count("data-when=") == 1


def test_the_images_of_a_page_have_a_limit(tmp_path, monkeypatch):
    """Large ones are reduced, and after a number of bytes the rest is only counted."""
    from PIL import Image

    (tmp_path / "samples").mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (700, 700, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "samples" / "a.png")
    assert (tmp_path / "samples" / "a.png").stat().st_size > 4 * images.HEAVY
    monkeypatch.setattr(images, "MOST_BYTES", 1_000_000)
    after = [sample(n, "", right=True, image="samples/a.png") for n in range(30)]
    html, page = page_of(write_run(tmp_path, [], after=after))
    assert 3 < page.count("img") < 30
    assert len(html) < 2 * images.MOST_BYTES
    assert "data:image/jpeg" in html
    assert f"{30 - page.count('img')} more are in the run's folder" in page.text


def test_no_text_of_training_or_of_a_start_becomes_markup(tmp_path):
    start = dict.fromkeys(("command", "time", "system", "step"), HOSTILE)
    start |= {"packages": {HOSTILE: HOSTILE}, "devices": {HOSTILE: HOSTILE}}
    (tmp_path / "run.json").write_text(json.dumps({"starts": [start, start]}))
    row = kept(1, HOSTILE, HOSTILE, rewards={HOSTILE: 1}, failed=HOSTILE, draw=HOSTILE)
    _, page = with_training(tmp_path, row, {**row, "step": HOSTILE, "right": [], "group": HOSTILE})
    assert {"img", "g"}.isdisjoint(tag for tag, _ in page.tags)
    assert page.count("script") == 1
    assert page.text.count("x()") >= 8


def test_a_histogram_counts_as_numpy_does():
    draw = random.Random(0)
    values = [draw.gauss(0, 2) for _ in range(500)]
    bins = bins_of(values)
    counts, _ = np.histogram(values, bins=bins.edges)
    assert bins.shares(values) == [*(counts / 500)]
    assert len(bins.edges) > 16
    few = [0.0, 1.0, 1.0, 0.5]
    assert bins_of(few).shares(few) == [0.25, 0.25, 0.5]
    assert [label for _, label in bins_of(few).labels] == ["0", "0.5", "1"]
    assert histogram("Reward", {"before": [1.0, 1.0], "after": [1.0]}) == ""
    extreme = [-1e99, 0.0, 1e-99, *(math.pi * n for n in range(9))]
    assert sum(bins_of(extreme).shares(extreme)) == pytest.approx(1)


def test_rewards_of_both_evaluations_have_a_histogram(tmp_path):
    """Parts have their own where they take more than two values."""
    sides = [
        [
            sample(n, "", right=n > at, total=n / 9, rewards={"right": n > at, "part": n})
            for n in range(9)
        ]
        for at in (6, 2)
    ]
    rows = [kept(n + 1, "x", "first", total=n % 3) for n in range(48)]
    html, page = with_training(tmp_path, *rows, before=sides[0], after=sides[1])
    assert "Rewards, held out|Rewards, in training|Reward, held out: part" in "|".join(titles(html))
    assert "first quarter of the run 12last quarter 12" in page.text
    biased = [{**row, "chosen": ["best"]} for row in rows]
    assert "Rewards, in training" not in titles(with_training(tmp_path, *biased)[0])


def test_the_page_tells_how_the_run_was_made(tmp_path):
    first = {"step": 0, "command": "groupwise train a.yaml", "time": "2026-11-27T08:00:00+00:00"}
    first |= {"packages": {"torch": "2.14", "numpy": "2.4"}, "devices": {"NVIDIA H100": 8}}
    again = {**first, "step": 40, "command": "groupwise resume runs/a"}
    again["packages"] = {"torch": "2.15", "numpy": "2.4"}
    (tmp_path / "run.json").write_text(json.dumps({"starts": [first, again]}))
    _, page = page_of(write_run(tmp_path, [{"step": 1, "reward": 1}]))
    assert "groupwise train a.yaml" in page.text
    assert "2026-11-27 08:00:00 UTC" in page.text
    assert "8 \N{MULTIPLICATION SIGN} NVIDIA H100" in page.text
    assert "torch 2.15" in page.text
    assert "torch402.14 \N{RIGHTWARDS ARROW} 2.15" in page.text
