"""The progress of a run on the terminal: one line for each step, and the time left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise.callback import RunContext
from groupwise.config.load import load_config
from groupwise.evaluation import Evaluation
from groupwise.kit import progress
from groupwise.storage.run_info import written
from groupwise_console.display import WIDTH, Console
from groupwise_console.evaluations import brief, changes
from groupwise_console.time_left import LAST, TimeLeft
from groupwise_console.watchers import LogWatcher, TerminalWatcher


def time_left(**sections: Any) -> TimeLeft:
    parts = {"policy": "toy", "prompts": "rows", "rewards": ["right"], **sections}
    return TimeLeft(written(load_config(parts).config))


def test_the_time_left_is_estimated_from_the_last_steps() -> None:
    estimate = time_left(train={"steps": 100})
    assert estimate.after(1, 50.0, elapsed=50.0) == 99 * 50.0
    for step in range(2, LAST + 2):  # the slow first step no longer counts
        remaining = estimate.after(step, 2.0, elapsed=0.0)
    assert remaining == (100 - LAST - 1) * 2.0


def test_the_time_left_includes_evaluations() -> None:
    """With 100 steps: after 20, 40, 60 and 80, and after the last."""
    estimate = time_left(train={"steps": 100}, evaluation={"every": 20})
    estimate.evaluation = 30.0
    assert estimate.after(39, 1.0, elapsed=0.0) == 61 + 4 * 30.0
    assert estimate.after(40, 1.0, elapsed=0.0) == 60 + 3 * 30.0
    assert estimate.after(100, 1.0, elapsed=0.0) == 30.0
    unevaluated = time_left(train={"steps": 100})
    unevaluated.evaluation = 30.0
    assert unevaluated.after(40, 1.0, elapsed=0.0) == 60 + 30.0


def test_the_time_left_has_the_last_evaluation_even_at_the_time_limit() -> None:
    estimate = time_left(train={"steps": 100, "minutes": 2})
    estimate.evaluation = 30.0
    assert estimate.after(10, 10.0, elapsed=100.0) == 20.0 + 30.0
    assert estimate.after(11, 10.0, elapsed=130.0) == 30.0
    assert estimate.after(99, 10.0, elapsed=50.0) == 10.0 + 30.0


METRICS = {"reward": -0.123456, "accuracy": 0.51234, "decisions_per_second": 123456.7}


@pytest.fixture(params=[80, 100, 140, None], ids=lambda width: f"width {width}")
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """The width of the terminal, or None for output to a file."""
    monkeypatch.setenv("COLUMNS", str(request.param or 80))
    monkeypatch.setenv("TERM", "xterm")
    if request.param:
        monkeypatch.setenv("FORCE_COLOR", "1")
    else:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
    return request.param


def begin(display: Console, steps: int, labels: Sequence[str] = ()) -> None:
    settings = {"train.steps": steps, "evaluation.every": 0}
    run = RunContext(folder=Path(), settings=settings, step=0, say=display.say)
    display.begin(run, unit="tokens", labels=labels, accuracy=None)


def line(
    terminal: int | None, capsys: pytest.CaptureFixture[str], labels: Sequence[str], **step: Any
) -> str:
    """The output for a step, which must be one line."""
    progress.start("")
    display = Console(quiet=False)
    begin(display, step["step"], labels)
    display.evaluation("before", Evaluation({}, [], seconds=step["left"]))  # and after the last one
    display.step(step["step"], step["metrics"], seconds=1.0, elapsed=1.0)
    if not terminal:
        (text,) = capsys.readouterr().err.splitlines()
        return text
    (text,) = shown(display)
    return text


def shown(display: Console) -> list[str]:
    """The lines that change on a terminal."""
    assert isinstance(display._watcher, TerminalWatcher)
    lines = display.terminal.render_lines(display._watcher.render())
    return ["".join(segment.text for segment in segments) for segments in lines]


def test_a_terminal_shows_the_phase_with_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    display = Console(quiet=False)
    progress.start("")
    assert "".join(shown(display)).strip() == ""
    progress.start("loading")
    with progress.doing("prompts"):
        (line,) = shown(display)
    assert line.split("  ")[0] == "loading: prompts"
    progress.start("step 1 of 3")
    with progress.doing("sampling"):
        progress.expect("completions", 64)
        progress.count("tokens", 1234)
        progress.count("completions", 12, early=True)  # by the sampler, before the core has them
        assert shown(display)[0].startswith(
            "step 1 of 3: sampling, 12 of 64 completions, 1,234 tokens  0:00:0"
        )
    with progress.doing("rewards"), progress.doing("reward 'math'"):
        assert shown(display)[0].startswith("step 1 of 3: reward 'math'  ")
    with progress.doing("sampling"):  # again: the counts go on, and what is counted twice is once
        progress.count("completions", 12)
        assert "12 of 64 completions" in shown(display)[0]
    begin(display, 3)
    display.step(1, {**METRICS, "decisions_per_second": 5.0}, seconds=1.0, elapsed=1.0)
    assert [line.split()[:2] for line in shown(display)] == [["step", "1/3"], ["step", "1"]]
    progress.start("")  # after the end nothing is left
    assert len(shown(display)) == 1


def test_a_bar_is_shown_in_runs_of_one_policy(
    terminal: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {**METRICS, "reward": 0.25, "policy/reward": 0.25}
    text = line(terminal, capsys, ["policy"], step=60, metrics=metrics, left=90.0)
    assert ("\u2501" in text) == (terminal in {100, 140})
    assert "(policy" not in text


def test_a_log_has_long_phases_before_the_first_step_and_signs_of_life(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    display = Console(quiet=False)
    watcher = display._watcher
    assert isinstance(watcher, LogWatcher)

    def looked(at: float) -> str:
        clock[0] = at
        watcher.look()
        return capsys.readouterr().err.strip()

    progress.start("loading")
    with progress.doing("the policy"):
        assert [looked(1.0), looked(4.0), looked(5.0)] == ["", "loading: the policy  0:00:04", ""]
        assert looked(70.0) == "loading: the policy  0:01:10"
    begin(display, 40)
    display.step(1, {**METRICS, "decisions_per_second": 5.0}, seconds=1.0, elapsed=1.0)
    progress.start("step 2 of 40")
    with progress.doing("update"):
        assert [looked(80.0), looked(110.0)] == ["", ""]
        assert looked(140.0) == "step 2 of 40: update  0:01:10"
    progress.start("")
    assert looked(900.0) == ""


def test_a_step_is_one_line(terminal: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    """With the longest values that are usual."""
    text = line(terminal, capsys, (), step=2000, metrics=METRICS, left=90_000.4)
    assert len(text) <= (terminal or WIDTH)
    assert text.startswith("step 2000/2000 ")
    assert "reward -0.123  accuracy 0.51  123,457 tokens/s  left 25:00:00" in text
    assert ("━" in text) == (terminal in (100, 140))


@pytest.mark.parametrize("labels", [("writer", "painter"), ("a", "b", "c", "d" * 40)])
def test_rewards_of_several_policies_are_shown_if_they_fit(
    terminal: int | None, labels: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = {"reward": 0.25} | {f"{label}/reward": 0.25 for label in labels}
    metrics = METRICS | rewards | {"decisions_per_second": 1234.0}
    text = line(terminal, capsys, labels, step=60, metrics=metrics, left=90.0)
    assert len(text) <= (terminal or WIDTH)
    assert "accuracy 0.51" in text
    assert "left 0:01:30" in text
    fits = terminal != 80 and len(labels) == 2
    assert ("reward 0.250 (writer 0.250, painter 0.250)  acc" in text) == fits


def test_an_evaluation_shows_accuracy_and_reward() -> None:
    metrics = {"accuracy": 0.5, "greedy_accuracy": 0.75, "reward": 0.6, "length": 9, "prompts": 4}
    assert brief(metrics).startswith("accuracy 0.5  greedy 0.75  reward 0.6  length 9  (4")
    tools = {"environment/turns": 2.5, "environment/calls": 1.25, "environment/won": 0.1}
    assert "length 9  turns 2.5  calls 1.25  (4" in brief(metrics | tools)
    del metrics["accuracy"]
    assert brief(metrics).startswith("reward 0.6  length 9  (4")
    del metrics["length"]
    assert brief({**metrics, "distinct_prompts": 3}) == (
        "reward 0.6  (4 held-out prompts, 3 different)"
    )


def test_the_reward_that_is_the_accuracy_is_said_once():
    before = {"accuracy": 0.2, "rewards/exact": 0.2, "rewards/form": 0.9, "reward": 0.3}
    after = {"accuracy": 0.6, "rewards/exact": 0.6, "rewards/form": 1.0, "reward": 0.6}
    assert changes(before, after, "exact") == (
        "accuracy (exact) 0.2 -> 0.6, reward 0.3 -> 0.6, rewards/form 0.9 -> 1"
    )
    after["rewards/exact"] = 0.65  # graded
    assert "rewards/exact 0.2 -> 0.65" in changes(before, after, "exact")


def test_what_changed_begins_with_the_largest_rise_and_names_the_accuracy():
    before = {"reward": 0.1, "accuracy": 0.25, "rewards/math": 0.2, "rewards/form": 0.9}
    after = {"reward": 0.5, "accuracy": 0.75, "rewards/math": 0.2, "rewards/form": 0.8}
    assert changes(before, after, "math") == (
        "accuracy (math) 0.25 -> 0.75, reward 0.1 -> 0.5, rewards/form 0.9 -> 0.8"
    )
    assert brief(after, "math").startswith("accuracy (math) 0.75  reward 0.5")
    assert changes({"accuracy": 0.5}, {"accuracy": 0.75, "prompts": 100}) == (
        "accuracy 0.5 -> 0.75 (100 prompts: standard error of an accuracy up to 0.05)"
    )
    assert changes({"reward": 0.5}, {"reward": 0.75, "prompts": 100}) == "reward 0.5 -> 0.75"
    unknown = {"reward": None, "accuracy": float("nan")}  # in a file NaN is None
    assert changes(unknown, after) == ""
    assert changes({}, after) == ""
