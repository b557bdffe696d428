"""The report of a run: its charts, tables and samples, and that hostile text stays text."""

import base64
import hashlib
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from groupwise_report import gallery, images
from groupwise_report.axes import ticks
from groupwise_report.charts import Chart, Series, draw, draw_stacked, smooth, thin
from groupwise_report.comparison import MOST_PROMPTS, chosen, paired
from groupwise_report.wording import brief, display, duration, number, tick_labels, wilson
from groupwise_report.writing import write_report

HOSTILE = "</script><img onerror=\"x()\" src='x'><svg/onload=x()>&amp;\x07\ud800"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


class Page(HTMLParser):
    """Parses a page: all tags with their attributes, tags still open, and the text."""

    VOID = frozenset({"meta", "img", "source", "br", "path", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def write_run(
    folder: Path,
    steps: list[dict[str, Any]],
    *,
    result: dict[str, Any] | None = None,
    before: list[dict[str, Any]] | None = None,
    after: list[dict[str, Any]] | None = None,
    training: list[dict[str, Any]] | None = None,
    config: str = "",
) -> Path:
    folder.joinpath("samples").mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "metrics.jsonl", steps)
    if result is not None:
        folder.joinpath("result.json").write_text(json.dumps(result))
    if config:
        folder.joinpath("config.yaml").write_text(config)
    for side, samples in (("before", before), ("after", after), ("training", training)):
        if samples is not None:
            _write_lines(folder / "samples" / f"{side}.jsonl", samples)
    return folder


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def page_of(run: Path) -> tuple[str, Page]:
    html = write_report(run).read_text(encoding="utf-8")
    page = Page(html)
    assert page.open == []
    return html, page


def titles(html: str) -> list[str]:
    return re.findall(r"<figcaption><h3>(.*?)</h3>", html)


def step_row(step: int, **fields: Any) -> dict[str, Any]:
    return {"step": step, "reward": 0.1 * step, "reward_std": 0.2, "kl": 0.01 * step, **fields}


def sample(draw: int, completion: Any, *, right: bool, **fields: Any) -> dict[str, Any]:
    row = {"prompt": f"question {draw}", "completion": completion, "right": right}
    return {**row, "rewards": {"correct": float(right)}, "greedy": True, "draw": draw, **fields}


def full_run(folder: Path) -> Path:
    metrics = {"rewards/correct": 0.5, "rewards/format": 0.9, "accuracy": 0.4, "entropy": 1.0}
    metrics |= {"length": 40, "length_max": 90, "truncated": 0.1, "clip_fraction": 0.01}
    metrics |= {"zero_variance": 0.2, "mismatch/mean": 1e-7, "grad_norm": 0.4, "loss": 0.0}
    metrics |= {"learning_rate": 1e-6, "time/sample": 2.0, "time/update": 1.0}
    metrics |= {"reward_time/correct": 0.3, "decisions_per_second": 5000}
    metrics |= {"evaluation/accuracy": 0.5, "evaluation/prompts": 100}
    metrics |= {"prompts/always_right": 0.2, "prompts/between": 0.8, "replay/share": 0.1}
    steps: list[dict[str, Any]] = [{"step": 0, "evaluation/accuracy": 0.2}]
    steps += [step_row(step, **metrics) for step in range(1, 81)]
    result = {
        "before": {"accuracy": 0.25, "pass_at_8": 0.5, "length": 40},
        "after": {"accuracy": 0.75, "pass_at_8": 0.9, "length": 52.5},
        "steps": 80,
        "seconds": 3725,
    }
    config = "policy:\n  model: m\n  name: causal_lm  # local\nalgorithm: grpo\n"
    return write_run(folder, steps, result=result, config=config)


def test_the_report_of_a_run_has_all_charts_in_order(tmp_path: Path) -> None:
    html, page = page_of(full_run(tmp_path))
    expected = "Reward|Accuracy|Reward: correct|Reward: format|KL|Entropy|Length|Truncated"
    expected += "|Clipped ratios|Groups without variance|Mismatch|Gradient norm|Learning rate"
    expected += "|Prompts by success|Replayed completions"
    assert titles(html) == [*expected.split("|"), "Time by phase", "Throughput"]
    assert "80 steps · 1 h 02 min · policy causal_lm · algorithm grpo" in page.text
    assert (
        "25.0 % → 75.0 %+50.0 points95 % interval: 18\N{EN DASH}34 → 66\N{EN DASH}82" in page.text
    )
    assert "Pass@850.0 % → 90.0 %" in page.text
    assert "its value shows no progress" in page.text
    assert "result.json" not in page.text
    assert page.count("details") == 1
    assert all(a["aria-label"] for tag, a in page.tags if tag == "svg")


def test_the_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    html, page = page_of(full_run(tmp_path))
    assert not re.search(r"https?://|url\(|@import|//cdn", html)
    assert {"link", "iframe", "object", "base"}.isdisjoint(tag for tag, _ in page.tags)
    assert not [a for _, a in page.tags if "src" in a or "href" in a]


def test_the_security_policy_allows_only_the_own_script(tmp_path: Path) -> None:
    html, page = page_of(full_run(tmp_path))
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert len(scripts) == 1
    policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    messages = [{"role": HOSTILE, "content": HOSTILE}, {"role": "user", "content": [HOSTILE]}]
    rows = [
        sample(1, HOSTILE, right=False, prompt=messages, index=HOSTILE, rewards={HOSTILE: HOSTILE}),
        sample(2, [HOSTILE, *messages], right=False, prompt=HOSTILE, image=HOSTILE),
        sample(3, HOSTILE, right=False, watched={HOSTILE: HOSTILE}, prompt=HOSTILE),
        sample(4, "", right=False, watched={HOSTILE: 1}, prompt=messages, image=HOSTILE),
    ]
    keys = ("rewards/", "evaluation/pass_at_", "evaluation/rewards/", "time/", "reward_time/")
    keys += ("alarm/", "evaluation/watch/", "watch/")
    steps = [{"step": s, **{key + HOSTILE: 0.5 for key in keys}} for s in (1, 2)]
    config = f"name: {HOSTILE!a}\npolicy: {HOSTILE!a}\n"
    result = {
        "name": HOSTILE,
        "before": {f"rewards/{HOSTILE}": 1},
        "after": {"pass_at_" + HOSTILE: 1, "watch/" + HOSTILE: 1, "length": 1},
        "unit": HOSTILE,
    }
    run = write_run(tmp_path, steps, result=result, before=rows, after=rows, config=config)
    html, page = page_of(run)
    assert page.count("img") == 0
    assert page.count("script") == 1
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert "\x07" not in html
    assert page.text.count("<svg/onload=x()>&amp;") > 15


def test_an_interrupted_run_has_a_page(tmp_path: Path) -> None:
    evaluated = step_row(3, **{"evaluation/accuracy": 0.6})
    steps = [{"step": 0, "evaluation/accuracy": 0.2}, step_row(1), step_row(2), evaluated]
    run = write_run(tmp_path, steps, before=[sample(1, "so far", right=False)])
    with run.joinpath("metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward": 0.')
    _, page = page_of(run)
    assert "3 steps" in page.text
    assert "it has no result.json" in page.text
    assert "1 line of metrics.jsonl could not be read" in page.text
    assert "20.0 % → 60.0 %+40.0 pointsafter step 3" in page.text
    assert "so far" in page.text
    assert "After" not in page.text.split("so far")[1]


def test_a_run_of_no_steps_has_a_page(tmp_path: Path) -> None:
    html, page = page_of(write_run(tmp_path, []))
    assert "0 steps" in page.text
    assert titles(html) == []
    assert "nothing of progress" not in page.text


def test_a_run_of_one_step_shows_dots(tmp_path: Path) -> None:
    html, page = page_of(
        write_run(tmp_path, [step_row(1, **{"time/sample": 1.5, "teacher_kl": 0.2})])
    )
    assert titles(html) == ["Reward", "KL", "KL to the teacher", "Time by phase"]
    assert "1 step" in page.text
    assert 'class="dot c0"' in html


def test_missing_and_non_finite_values_are_left_out(tmp_path: Path) -> None:
    invalid = {"kl": float("nan"), "entropy": None, "grad_norm": float("inf"), "length": "12"}
    html, _ = page_of(
        write_run(tmp_path, [{"step": 1, **invalid}, {"step": 2, **invalid, "reward": 1}])
    )
    assert titles(html) == ["Reward"]


def test_a_resumed_run_keeps_the_last_of_a_repeated_step(tmp_path: Path) -> None:
    steps = [step_row(1), step_row(2), step_row(2, reward=0.875), step_row(3)]
    _, page = page_of(write_run(tmp_path, steps))
    assert "3 steps" in page.text
    data = next(a["data-series"] for tag, a in page.tags if tag == "figure")
    assert json.loads(data or "") == [[[1, 0.1], [2, 0.875], [3, 0.3]]]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not the folder of a run: it has no metrics\.jsonl"):
        write_report(tmp_path)


def test_before_and_after_are_paired_by_draw_index_and_decoding() -> None:
    before = [
        {"draw": 1, "index": i, "greedy": g, "side": "b"} for i in (0, 1) for g in (True, False)
    ]
    after = [{**row, "side": "a"} for row in reversed(before)]
    pairs = paired(before, after[1:])
    assert len(pairs) == 4
    for old, new in pairs[:3]:
        assert old is not None
        assert new == {**old, "side": "a"}
    assert pairs[3] == (before[3], None)


def test_samples_show_one_pair_for_each_prompt_and_changed_ones_first() -> None:
    before = [sample(d, "old", right=False, index=i) for d in range(40) for i in (0, 1)]
    after = [sample(d, "old", right=False, index=i) for d in range(40) for i in (0, 1)]
    after[2 * 30] = sample(30, "new", right=True, index=0)
    after[2 * 20] = sample(20, "new", right=False, index=0)
    after[2 * 10 + 1] = sample(10, "new", right=True, index=1)  # its first sample did not change
    draws = [old["draw"] for old, _ in chosen(paired(before, after)) if old]
    assert draws == [30, 20, *range(20), 21, 22]


def test_graded_completions_are_sorted_by_the_change_of_their_reward(tmp_path: Path) -> None:
    """Greedy ones did not change; what rose is the headline."""

    def graded(draw: int, total: float, *, greedy: bool, text: str = "x") -> dict[str, Any]:
        row = sample(draw, text, right=False, greedy=greedy, index=0, total=total)
        return {**row, "right": None, "rewards": {"short": total, "form": 1 - total}}

    changes = {3: 0.5, 1: 0.25, 0: 0.125, 2: -0.375}
    before = [graded(d, 0.5, greedy=g) for d in range(5) for g in (True, False)]
    after = [
        graded(d, 0.5 if g else 0.5 + changes.get(d, 0.0), greedy=g, text="x" if g else f"new {d}")
        for d in range(5)
        for g in (True, False)
    ]
    shown = chosen(paired(before, after))
    assert [now["draw"] for _, now in shown if now] == [3, 1, 0, 2, 4]
    assert not any(now["greedy"] for _, now in shown if now)
    assert [now["draw"] for _, now in chosen(paired(before, after), 2) if now] == [3, 2]
    _, page = page_of(write_run(tmp_path, [], before=before, after=after))
    assert "Means before and after:reward 0.5 → 0.6short 0.5 → 0.6form 0.5 → 0.4" in page.text
    assert "Of all 5 sampled completions:3 rose1 fell1 kept their reward" in page.text
    assert "reward rose by 0.5" in page.text
    assert "reward fell by 0.375" in page.text
    assert "unchanged" not in page.text


def test_right_and_wrong_are_counted_over_all_pairs(tmp_path: Path) -> None:
    before = [sample(d, "x", right=d % 2 == 0) for d in range(100)]
    after = [sample(d, "y", right=d % 4 < 2) for d in range(100)]
    _, page = page_of(write_run(tmp_path, [], before=before, after=after))
    assert "all 100 evaluated" in page.text
    assert "25 became right25 became wrong25 stayed right25 stayed wrong" in page.text
    assert page.count("article") == MOST_PROMPTS


def test_a_long_completion_is_shortened_in_the_middle(tmp_path: Path) -> None:
    rows = [sample(1, "start " + "x" * 20_000 + " end", right=True)]
    _, page = page_of(write_run(tmp_path, [], after=rows))
    assert "12,010 characters left out" in page.text
    assert " end" in page.text


def test_only_images_in_the_folder_of_the_run_are_embedded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    tmp_path.joinpath("secret.png").write_bytes(PNG)
    run.joinpath("samples", "a.png").write_bytes(PNG)
    run.joinpath("samples", "b.png").write_bytes(b"<svg onload=x()>")
    names = [
        "samples/a.png",
        "samples/b.png",
        "../secret.png",
        str(tmp_path / "secret.png"),
        "samples",
    ]
    rows = [sample(d, None, right=True, image=name) for d, name in enumerate(names)]
    _, page = page_of(write_run(run, [], before=rows))
    sources = [a["src"] for tag, a in page.tags if tag == "img"]
    assert sources == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]
    assert page.text.count("no such file") == 3
    assert page.text.count("not a PNG or AVIF") == 1


def picture(width: int, size: int = 24) -> bytes:
    """The header of a PNG with this width, padded to `size` bytes."""
    return PNG[:16] + width.to_bytes(4, "big") + b"\0" * (size - 20)


@pytest.mark.parametrize(
    ("size", "images"),
    [
        (24, 2 * gallery.MOST_PICTURED),  # small images: as many prompts as a page may have
        (images.SMALL // 40, images.MOST_IMAGES),
        (images.SMALL // 70, 70),  # between both: limited by the sum of their bytes
    ],
)
def test_the_number_and_size_of_embedded_images_are_limited(
    tmp_path: Path, size: int, images: int
) -> None:
    run = write_run(tmp_path, [])
    run.joinpath("a.png").write_bytes(picture(32, size + size % 2))
    rows = [sample(d, None, right=True, image="a.png") for d in range(2 * gallery.MOST_PICTURED)]
    _, page = page_of(write_run(run, [], before=rows, after=rows))
    assert page.count("img") == images
    omitted = 2 * gallery.MOST_PICTURED - images // 2
    assert f"{omitted} more are in the run's folder" in page.text


def test_images_are_shown_in_a_grid_with_their_rewards(tmp_path: Path) -> None:
    run = write_run(tmp_path, [])
    fields = {
        "image": "a.png",
        "greedy": False,
        "watched": {"legible": 0.25},
        "rewards": {"r": None},
    }
    rows = [sample(d, "", right=True, **fields) for d in range(3)]
    run.joinpath("a.png").write_bytes(picture(32))
    _, page = page_of(write_run(run, [], before=rows, after=rows))
    classes = [a.get("class") for _, a in page.tags]
    assert classes.count("gallery") == 1
    assert classes.count("sample picture") == 3
    assert page.text.count("legible 0.25") == 6
    assert page.text.count("r \N{EN DASH}") == 6
    assert "same held-out prompts and noise before and after" in page.text
    assert "in italics are watched, not trained on" in page.text
    assert "greedy" not in page.text


def test_a_source_stands_beside_what_was_made_of_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, [])
    for name in ("source", "before", "after"):
        run.joinpath(f"{name}.png").write_bytes(picture(32))
    before, after = (
        [sample(1, "", right=True, image=f"{name}.png", images=["source.png"])]
        for name in ("before", "after")
    )
    html, page = page_of(write_run(run, [], before=before, after=after))
    assert [a["alt"] for tag, a in page.tags if tag == "img"] == [
        "source.png",
        "before.png",
        "after.png",
    ]
    assert html.index('class="pair"') < html.index("source.png")  # in the same row


@pytest.mark.parametrize(
    ("width", "style"),
    [(32, "width:160px"), (28, "width:140px"), (100, "width:100px"), (256, None), (0, None)],
)
def test_small_images_are_enlarged_by_whole_factors(
    tmp_path: Path, width: int, style: str | None
) -> None:
    run = write_run(tmp_path, [])
    run.joinpath("a.png").write_bytes(picture(width))
    _, page = page_of(write_run(run, [], before=[sample(1, "", right=True, image="a.png")]))
    (image,) = [a for tag, a in page.tags if tag == "img"]
    assert image.get("style") == style
    assert image.get("class") == ("tiny" if style else None)


def test_an_alarm_is_shown_at_the_top_and_earlier_ones_are_listed(tmp_path: Path) -> None:
    def evaluated_row(step: int, reward: float, watched: float, **alarms: float) -> dict[str, Any]:
        values = {"evaluation/reward": reward, "evaluation/watch/check": watched}
        return step_row(step, **values, **{f"alarm/{name}": v for name, v in alarms.items()})

    steps = [
        evaluated_row(0, 0.1, 0.9),
        evaluated_row(2, 0.5, 0.5, check=1.0, other=0.0),
        evaluated_row(4, 0.75, 0.25, check=1.0, other=0.0),
        evaluated_row(6, 0.8, 0.9, check=0.0, other=0.0),
    ]
    html, page = page_of(write_run(tmp_path, steps))
    assert html.count('class="warning alarm"') == 1
    assert "Alarm at step 4." in page.text
    assert "risen (0.1 → 0.75) while check, which" in page.text
    assert "worsened (0.9 → 0.25)" in page.text
    assert "Earlier alarms: at step 2. At step 6 there was none." in page.text
    assert "Alarm at steps 2 and 4." in page.text
    assert "Alarm" not in page_of(write_run(tmp_path, [steps[0], steps[3]]))[1].text


def test_weights_bounds_and_multipliers_of_rewards_are_shown_with_their_curves(
    tmp_path: Path,
) -> None:
    config = """rewards:
- {name: a, weight: {start: 1.0, end: 0.0, steps: 4}}
- {name: "mine:b", constraint: {at_most: 40, at_least: 30.5}}
- {name: b, label: c, constraint: {at_least: 0.9, at_most: null}}
- {name: d, constraint: {at_most: many}}
"""
    factors = {"weights/a": 0.5, "multipliers/b/at_most": 0.2, "multipliers/b/at_least": 0.0}
    rewards = {"rewards/a": 0.5, "rewards/b": 35.0, "rewards/c": 0.5, "rewards/d": 1.0}
    steps = [step_row(step, **rewards, **factors) for step in range(1, 4)]
    html, page = page_of(write_run(tmp_path, steps, config=config))
    expected = "Reward: a|Constraint: b|Constraint: c|Reward: d|Weight: a|Multipliers"
    assert "|".join(titles(html)[1:7]) == expected
    assert "Its bound is at most 40 and at least 30.5 (dashed line)" in page.text
    assert "Its bound is at least 0.9 (dashed" in page.text
    assert "b at most" in page.text
    assert "the rewards with the weights of the step" in page.text
    levels = [
        attributes["d"] for tag, attributes in page.tags if attributes.get("class") == "level"
    ]
    assert [level.count("M0 ") for level in levels] == [2, 1]
    plain = page_of(write_run(tmp_path / "plain", [step_row(1, **rewards)]))
    assert "the rewards with the weights of the step" not in plain[1].text
    for hostile in ("rewards: 3", "rewards: [3, {name: [1], constraint: {at_most: 1}}]"):
        page_of(write_run(tmp_path / "hostile", steps, config=hostile))


def test_watched_rewards_share_a_chart_only_if_their_ranges_are_similar(tmp_path: Path) -> None:
    def watched_titles(**values: float) -> list[str]:
        rows = [
            step_row(s, **{f"evaluation/watch/{n}": v for n, v in values.items()}) for s in (0, 2)
        ]
        return [title for title in titles(page_of(write_run(tmp_path, rows))[0]) if "Wat" in title]

    assert watched_titles(a=0.2, b=1.5) == ["Watched"]
    assert watched_titles(a=0.2, b=150) == ["Watched: a", "Watched: b"]
    assert watched_titles() == []


def test_a_constant_number_of_decisions_has_no_chart(tmp_path: Path) -> None:
    """The length of an image is the number of denoising steps, equal for all completions."""
    rows = [step_row(s, length=10.0, length_max=10.0, decisions_per_second=9) for s in (1, 2)]
    result = {"before": {"reward": 1}, "after": {"reward": 2}, "unit": "steps"}
    _, page = page_of(write_run(tmp_path, rows, result=result))
    assert "ength" not in page.text
    assert "steps a second" in page.text
    result["before"] = result["after"] = {"length": 3.5}
    assert "Length, steps3.5" in page_of(write_run(tmp_path, rows, result=result))[1].text


def test_unscored_completions_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    before = [sample(d, "x", right=True) for d in range(3)]
    after = [{**before[0], "right": None}, {**before[1], "right": False}, before[2]]
    before[1] = {**before[1], "right": None}
    _, page = page_of(write_run(tmp_path, [], before=before, after=after))
    assert "all 1 evaluated" in page.text
    assert "0 became right0 became wrong1 stayed right0 stayed wrong" in page.text
    assert page.text.count("became wrong") == 1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 0.93, [0, 0.25, 0.5, 0.75, 1]),
        (-0.2, 1.3, [-0.5, 0, 0.5, 1, 1.5]),
        (3e-7, 9e-7, [2e-7, 4e-7, 6e-7, 8e-7, 10e-7]),
        (5, 5, [0, 2, 4, 6]),
        (0, 0, [0, 0.25, 0.5, 0.75, 1]),
        (-3, -3, [-3, -2, -1, 0]),
    ],
)
def test_ticks_are_round_numbers_that_cover_the_range(
    low: float, high: float, expected: list[float]
) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_extreme_values_can_be_drawn() -> None:
    for values in ([1e99, -1e99], [1e-310, 2e-310], [1 + 1e-15, 1.0], [0.0, 0.0]):
        chart = Chart(title="t", series=[Series(name="s", points=list(enumerate(values, 1)))])
        assert "nan" not in draw(chart, 2)


def test_labels_of_ticks_have_equal_decimals() -> None:
    assert tick_labels([0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert tick_labels([-0.5, 0, 0.5], percent=True) == ["\N{MINUS SIGN}50 %", "0", "50 %"]
    assert tick_labels([0, 20000, 40000]) == ["0", "20 k", "40 k"]
    assert tick_labels([0, 1e-6, 2e-6]) == ["0", "1e\N{MINUS SIGN}6", "2e\N{MINUS SIGN}6"]


def test_numbers_and_durations_are_formatted() -> None:
    assert [display(v) for v in (0.98765, 12345.6, 2.5e-7, -3)] == [
        "0.988",
        "12,346",
        "2.5e\N{MINUS SIGN}7",
        "\N{MINUS SIGN}3",
    ]
    assert [display(v, percent=True) for v in (0.5, 0.0021)] == ["50.0 %", "0.21 %"]
    assert [duration(s) for s in (0.25, 42, 330, 3725)] == [
        "0.25 s",
        "42 s",
        "5 min 30 s",
        "1 h 02 min",
    ]
    assert [number(v) for v in (1, True, "1", None, math.nan, -math.inf)] == [1.0, *[None] * 5]


def test_smoothing_keeps_a_constant_and_the_length() -> None:
    assert smooth([2.0] * 70) == pytest.approx([2.0] * 70)
    noisy = [float(i % 2) for i in range(200)]
    assert max(smooth(noisy)[20:-20]) - min(smooth(noisy)[20:-20]) < 0.05


def test_thinning_keeps_spikes_and_ends() -> None:
    points = [(float(i), 0.0) for i in range(10_000)]
    points[5003] = (5003.0, 9.0)
    thinned = thin(points)
    assert len(thinned) <= 810
    assert {points[0], points[-1], points[5003]} <= set(thinned)


def test_raw_values_are_drawn_behind_the_smoothed_curve_of_a_long_run() -> None:
    few, many = (
        draw(Chart(title="t", series=[Series(name="s", points=[(i, i % 3) for i in range(n)])]), n)
        for n in (60, 61)
    )
    assert 'class="raw' not in few
    assert 'class="raw' in many


def test_stacked_bars_add_up() -> None:
    series = [Series(name=n, points=[(1, 1.0), (2, 3.0)], colour=i) for i, n in enumerate("ab")]
    html = draw_stacked(Chart(title="t", series=series), 2)
    tops = re.findall(r'class="bar c\d" d="(.*?)"', html)
    assert "V500H" in tops[0]  # 3 of 6
    assert "V0H" in tops[1]  # 6 of 6


def test_the_wilson_interval_has_its_published_values() -> None:
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("policy: causal_lm", "causal_lm"),
        ("policy: 'causal_lm'  # a comment", "causal_lm"),
        ("policy:\n  model: m\n  name: causal_lm\nreward:\n  name: other", "causal_lm"),
        ("policy: {name: causal_lm, model: m}", "causal_lm"),
        ("policy:\n  model: m\nname: other", None),
        ("my_policy: other", None),
    ],
)
def test_the_headline_names_the_policy(tmp_path: Path, policy: str, name: str | None) -> None:
    _, page = page_of(write_run(tmp_path, [], config=policy + "\n"))
    headline = page.text.split("steps")[1].split("The run")[0]
    assert headline == (f" · policy {name}" if name else "")


def test_the_accuracy_stands_with_the_name_of_its_reward(tmp_path: Path) -> None:
    steps = [{"step": 0, "evaluation/accuracy": 0.25, "evaluation/prompts": 40.0}, step_row(1)]
    result = {
        "before": {"accuracy": 0.25},
        "after": {"accuracy": 0.5},
        "accuracy": "numeric_answer",
    }
    html, page = page_of(write_run(tmp_path / "run", steps, result=result))
    assert "Accuracy (numeric_answer), sampled25.0 % → 50.0 %" in page.text
    assert "Accuracy (numeric_answer)" in titles(html)
    Path(tmp_path / "run" / "result.json").unlink()  # while it trains
    Path(tmp_path / "run" / "run.json").write_text('{"accuracy": "exact_answer"}')
    html, _ = page_of(tmp_path / "run")
    assert "Accuracy (exact_answer)" in titles(html)


def test_long_names_are_shortened_and_blank_ones_are_visible(tmp_path: Path) -> None:
    assert brief("n" * 60) == "n" * 60
    assert brief("a" * 5000 + "b" * 5000) == "a" * 39 + "…" + "b" * 20
    assert brief("Z" + "\u0300" * 500 + "a" + "\u0301" * 2) == "Z" + "\u0300" * 3 + "a\u0301\u0301"
    assert [brief(value) for value in (" \n ", "\u200b", "", None)] == [
        "(blank)",
        "(blank)",
        "",
        "None",
    ]
    name = "r" * 5000
    rows = [step_row(s, **{f"rewards/{name}": 1, f"reward_time/{name}": 1}) for s in (1, 2)]
    result = {"before": {f"rewards/{name}": 0}, "after": {f"rewards/{name}": 1}}
    before = [sample(1, "a", right=False, rewards={name: 1}, index=name)]
    html, _ = page_of(write_run(tmp_path, rows, result=result, before=before))
    assert "r" * 100 not in html


def test_very_long_numbers_and_very_deep_json_are_handled(tmp_path: Path) -> None:
    digits, deep = "7" * 6000, "[" * 10_000 + "]" * 10_000
    nested = '{"a":' * 300 + "1" + "}" * 300
    run = write_run(tmp_path, [step_row(1), step_row(2)], before=[], after=[])
    with run.joinpath("metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 3, "reward": 0.75, "kl": {digits}, "x": {nested}}}\n')
        file.write(f'{{"step": {digits}, "x": {deep}}}\n')
    lines = f'{{"draw": {digits}, "rewards": {{"r": {digits}}}, "completion": {nested}}}\n'
    run.joinpath("samples", "before.jsonl").write_text(lines + f'{{"completion": {deep}}}\n')
    run.joinpath("result.json").write_text(f'{{"steps": {digits}, "seconds": 1e99}}')
    _, page = page_of(run)
    assert "3 steps · 1.16e94 days" in page.text
    assert "1 line of metrics.jsonl could not be read" in page.text
    assert "Prompt inf" in page.text
    assert "r inf" in page.text
    assert "77777" not in page.text
    data = next(a["data-series"] for tag, a in page.tags if tag == "figure")
    assert json.loads(data or "")[0][-1] == [3, 0.75]


def test_texts_of_a_megabyte_are_shortened(tmp_path: Path) -> None:
    large = "x" * 1_000_000
    many = [{"role": "user", "content": large[:1000]}] * 1000
    rows = [sample(1, large, right=True, prompt=many), sample(2, "", right=True, prompt=large)]
    rows[1]["image"] = large
    run = write_run(tmp_path, [], before=rows, config=f"policy: p\nrows: {large}\n")
    html, page = page_of(run)
    assert len(html) < 700_000
    assert "[960 messages left out]" in page.text
    assert "[992,000 characters left out]" in page.text
    assert "policy p" in page.text


def test_a_named_pipe_is_not_read_as_an_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    _, page = page_of(write_run(tmp_path, [], before=[sample(1, "", right=True, image="a.png")]))
    assert "no such file" in page.text


def test_impossible_steps_do_not_stretch_the_axis(tmp_path: Path) -> None:
    for step in (1e99, -5, 1e10):
        html, _ = page_of(write_run(tmp_path, [step_row(1), {"step": step, "reward": 1}]))
        assert '<main data-last="2">' in html


def test_pictures_of_one_reward_have_no_lengths_and_one_curve_of_it(tmp_path: Path) -> None:
    metrics = {"rewards/aesthetic": 0.5, "length": 3, "length_max": 3, "truncated": 0.0}
    steps = [step_row(step, **metrics, reward=0.5) for step in (1, 2)]
    result = {"before": {"reward": 0.2, "rewards/aesthetic": 0.2}, "after": {"reward": 0.5}}
    row = {"step": 1, "draw": 0, "index": 0, "total": 0.5, "length": 3, "chosen": ["best"]}
    html, page = page_of(write_run(tmp_path, steps, result=result, training=[row]))
    assert titles(html) == ["Reward: aesthetic", "KL"]
    assert page.text.count("0.2 → 0.5") == 1
    assert "advantagecompletion" in page.text  # no column of lengths


def test_the_reward_that_is_the_accuracy_has_one_curve_and_one_tile(tmp_path: Path) -> None:
    metrics = {"rewards/exact": 0.5, "accuracy": 0.5, "rewards/form": 0.8}
    steps = [step_row(step, **metrics) for step in (1, 2)]
    sides = [
        {"accuracy": value, "reward": value + 0.08, "rewards/exact": value, "rewards/form": 0.8}
        for value in (0.2, 0.5)
    ]
    result = {"before": sides[0], "after": sides[1], "accuracy": "exact"}
    html, _ = page_of(write_run(tmp_path, steps, result=result))
    assert titles(html) == ["Reward", "Accuracy (exact)", "Reward: form", "KL"]
    tiles = re.findall("<dt>(.*?)</dt>", html)
    assert tiles == ["Accuracy (exact), sampled", "Reward, sampled", "Reward form"]


def learners_config(environment: str, *labels: str) -> str:
    listed = "".join(f"- label: {label}\n  policy: {{name: toy}}\n" for label in labels)
    return f"environment: {{name: {environment}}}\nplayers:\n{listed}"


def test_each_of_several_policies_has_its_curve(tmp_path: Path) -> None:
    both = {"writer/length": 8.0, "painter/length": 3.0, "writer/reward": 0.2}
    steps = [step_row(step, **both, **{"painter/kl": 0.5}, kl=9.0) for step in (1, 2)]
    for row in steps:
        row.update({"painter/reward": 0.4, "evaluation/accuracy/painter": 0.5, "length": 3.0})
    config = learners_config("chain", "writer", "painter")
    html, _ = page_of(write_run(tmp_path, steps, config=config))
    assert titles(html) == [
        *("Reward", "Reward by policy", "Accuracy by policy, sampled", "KL: painter", "Length")
    ]
    descriptions = re.findall(r'aria-label="(.*?)"', html)
    assert (
        "Length. writer: 8 at step 1, 8 at step 2; painter: 3 at step 1, 3 at step 2"
        in descriptions
    )
    assert "KL: painter. painter: 0.5 at step 1, 0.5 at step 2" in descriptions
    assert "or of refusal" in html


def test_completions_of_a_pool_are_compared_with_those_of_the_same_policy(tmp_path: Path) -> None:
    before = [sample(0, "x", right=False, learner=name) for name in ("one", "two")]
    after = [
        sample(0, "x", right=False, learner="one"),
        sample(0, "y", right=True, learner="two"),
    ]
    config = learners_config("pool", "one", "two")
    html, page = page_of(write_run(tmp_path, [], before=before, after=after, config=config))
    assert "all 2 evaluated completions" in page.text
    assert "1 became right0 became wrong0 stayed right1 stayed wrong" in page.text
    assert page.count("article") == 2
    # Changed samples come first.
    assert html.index("<span>two</span>") < html.index("<span>one</span>")
    assert "refused ones count" not in html


@pytest.mark.parametrize("has_image", [True, False])
def test_samples_of_a_chain_show_the_completions_of_all_its_policies(
    tmp_path: Path, has_image: bool
) -> None:
    run = write_run(tmp_path, [])
    run.joinpath("samples", "a.png").write_bytes(PNG)
    image = {"image": "samples/a.png"} if has_image else {}
    rows = [
        sample(0, "", right=True, shown={"writer": HOSTILE}, extra={"objects": "unshown"}, **image),
        sample(1, "", right=False, shown={"writer": "too long"}, refused="painter"),
    ]
    config = learners_config("chain", "writer", "painter")
    _, page = page_of(write_run(run, [], after=rows, config=config))
    assert "writer\ntoo long" in page.text
    assert "<img onerror=" in page.text
    assert "unshown" not in page.text
    assert "wrong · refused by painter" in page.text
    # One card for each prompt, in the grid if any sample has an image.
    assert page.count("article") == 2
    cards = [a["class"] for tag, a in page.tags if tag == "article"]
    assert cards == ["sample picture" if has_image else "sample"] * 2
