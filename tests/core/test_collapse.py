"""`train.stop_on_collapse`: a run ends where a metric leaves its past, resumed or not."""

import json

import pytest

import groupwise
from groupwise.recording import collapse
from groupwise.recording.recorder import CollapsedError

STEPS, SAVED = 60, 16


@pytest.fixture(autouse=True)
def suspicious(monkeypatch):
    """What leaves its past here is a reward that is learned."""
    limits = {"reward": collapse.Limit(above=1.2, meaning="it learns")}
    monkeypatch.setattr(collapse, "LIMITS", limits)


def settings(lab, folder, **train):
    return {
        "output": folder,
        "prompts": {"name": lab.rows(), "held_out": 0.4},
        "rewards": [lab.ones],
        "evaluation": {"prompts": 2},
        "quiet": True,
        "train": {
            "steps": STEPS,
            "groups_per_step": 4,
            "group_size": 8,
            "learning_rate": 0.1,
            "stop_on_collapse": True,
            "checkpoint_every": SAVED,
            **train,
        },
    }


def ended(lab, folder, **more):
    """The message with which a run ends, which names the steps."""
    with pytest.raises(CollapsedError) as raised:
        groupwise.train(policy=lab.Tabular(), **settings(lab, folder), **more)
    return str(raised.value)


def test_a_resumed_run_ends_where_one_ends_that_never_stopped(lab, tmp_path):
    through = ended(lab, tmp_path / "through")
    halved = tmp_path / "halved"
    first = settings(lab, halved, steps=SAVED)
    assert groupwise.train(policy=lab.Tabular(), **first).steps == SAVED
    assert ended(lab, halved, resume=True) == through


def test_warnings_are_kept_where_a_run_goes_on(lab, tmp_path):
    options = settings(lab, tmp_path / "run", stop_on_collapse=False)
    groupwise.train(policy=lab.Tabular(), **options)
    result = tmp_path / "run" / "result.json"
    said = json.loads(result.read_text())["warnings"]
    assert any("has left its own past" in warning for warning in said)
    groupwise.train(policy=lab.Tabular(), **options, resume=True)
    assert json.loads(result.read_text())["warnings"] == said
