"""What a run shows while it trains: a line a step, and how long it will still take."""

from collections.abc import Sequence
from typing import Any

import pytest

from groupwise.config.sections import RunConfig
from groupwise.run.display import WIDTH, Display, brief
from groupwise.run.time_left import LAST, TimeLeft


def time_left(**sections: Any) -> TimeLeft:
    parts = {"policy": "toy", "prompts": "rows", "rewards": ["right"], **sections}
    return TimeLeft(RunConfig.model_validate(parts))


def test_the_last_steps_say_how_long_the_others_take() -> None:
    left = time_left(train={"steps": 100})
    assert left.after(1, 50.0, elapsed=50.0) == 99 * 50.0
    for step in range(2, LAST + 2):  # the first step, which took long, is forgotten
        remaining = left.after(step, 2.0, elapsed=0.0)
    assert remaining == (100 - LAST - 1) * 2.0


def test_evaluations_take_their_time() -> None:
    """Of 100 steps those after 20, 40, 60 and 80, and the one after the last."""
    left = time_left(train={"steps": 100}, evaluation={"every": 20})
    left.evaluated(30.0)
    assert left.after(39, 1.0, elapsed=0.0) == 61 + 4 * 30.0
    assert left.after(40, 1.0, elapsed=0.0) == 60 + 3 * 30.0
    assert left.after(100, 1.0, elapsed=0.0) == 30.0
    unevaluated = time_left(train={"steps": 100})
    unevaluated.evaluated(30.0)
    assert unevaluated.after(40, 1.0, elapsed=0.0) == 60 + 30.0


def test_a_time_limit_ends_the_steps_and_not_the_last_evaluation() -> None:
    left = time_left(train={"steps": 100, "minutes": 2})
    left.evaluated(30.0)
    assert left.after(10, 10.0, elapsed=100.0) == 20.0 + 30.0
    assert left.after(11, 10.0, elapsed=130.0) == 30.0
    assert left.after(99, 10.0, elapsed=50.0) == 10.0 + 30.0


METRICS = {"reward": -0.123456, "accuracy": 0.51234, "decisions_per_second": 123456.7}


@pytest.fixture(params=[80, 100, 140, None], ids=lambda width: f"width {width}")
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """The width of the terminal, None where there is none."""
    monkeypatch.setenv("COLUMNS", str(request.param or 80))
    monkeypatch.setenv("TERM", "xterm")
    if request.param:
        monkeypatch.setenv("FORCE_COLOR", "1")
    else:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
    return request.param


def line(
    terminal: int | None, capsys: pytest.CaptureFixture[str], labels: Sequence[str], **step: Any
) -> str:
    """What is shown of a step; fails where that is more than a line."""
    shown = Display(steps=step["step"], unit="tokens", quiet=False, labels=labels)
    shown.step(step["step"], step["metrics"], left=step["left"])
    if not terminal:
        (text,) = capsys.readouterr().err.splitlines()
        return text
    drawn = shown._progress.make_tasks_table(shown._progress.tasks)
    (segments,) = shown.console.render_lines(drawn)
    return "".join(segment.text for segment in segments)


def test_a_step_is_a_line(terminal: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    """The longest that is usual."""
    text = line(terminal, capsys, (), step=2000, metrics=METRICS, left=90_000.4)
    assert len(text) <= (terminal or WIDTH)
    assert text.startswith("step 2000/2000 ")
    assert "reward -0.123  accuracy 0.51  123,457 tokens/s  left 25:00:00" in text
    assert ("━" in text) == (terminal in (100, 140))


@pytest.mark.parametrize("labels", [("writer", "painter"), ("a", "b", "c", "d" * 40)])
def test_rewards_of_several_policies_stand_where_there_is_room(
    terminal: int | None, labels: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = {"reward": 0.25} | {f"{label}/reward": 0.25 for label in labels}
    metrics = METRICS | rewards | {"decisions_per_second": 1234.0}
    text = line(terminal, capsys, labels, step=60, metrics=metrics, left=90.0)
    assert len(text) <= (terminal or WIDTH)
    assert "accuracy 0.51" in text
    assert "left 0:01:30" in text
    roomy = terminal != 80 and len(labels) == 2
    assert ("reward 0.250 (writer 0.250, painter 0.250)  acc" in text) == roomy


def test_an_evaluation_shows_the_reward_beside_the_accuracy() -> None:
    metrics = {"accuracy": 0.5, "greedy_accuracy": 0.75, "reward": 0.6, "length": 9, "prompts": 4}
    assert brief(metrics).startswith("accuracy 0.5  greedy 0.75  reward 0.6  length 9  (4")
    del metrics["accuracy"]
    assert brief(metrics).startswith("reward 0.6  length 9  (4")
