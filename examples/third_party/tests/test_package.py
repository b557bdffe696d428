"""The package as a plugin: its names, its settings, and a run with them."""

import json
from pathlib import Path

import pytest

import groupwise
from groupwise.kit.errors import UserError
from groupwise.registry import installed

NAMES = {
    ("policies", "controller"),
    ("rewards", "arrives"),
    ("rewards", "smooth_control"),
    ("algorithms", "reinforce"),
    ("prompts", "controller_targets"),
    ("callbacks", "exploration_log"),
}


def test_every_name_is_registered_and_loads() -> None:
    registry = installed()
    ours = [entry for entry in registry.entries if entry.plugin == "controller"]
    assert {(entry.kind, entry.name) for entry in ours} == NAMES
    for entry in ours:
        assert registry.load(entry.kind, entry.name).__doc__


def test_a_run_by_name(tmp_path: Path) -> None:
    result = groupwise.train(
        policy="controller",
        prompts="controller_targets",
        rewards=["arrives", {"name": "smooth_control", "weight": 0.3}],
        algorithm="reinforce",
        train={"steps": 20, "groups_per_step": 16, "group_size": 16, "learning_rate": 3e-3},
        evaluation={"prompts": 100},
        callbacks=[{"name": "exploration_log", "file": str(tmp_path / "log.csv")}],
        output=str(tmp_path / "run"),
        quiet=True,
    )
    assert result.after["rewards/arrives"] > result.before["rewards/arrives"] + 0.2
    assert len((tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()) == 21
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    gaps = [json.loads(line).get("mismatch/max", 0.0) for line in metrics]
    assert max(gaps) < 1e-4


def test_a_kl_to_the_reference_and_a_second_epoch(tmp_path: Path) -> None:
    """GRPO's own features work with a policy from another package."""
    result = groupwise.train(
        policy={"name": "controller", "horizon": 10},
        prompts="controller_targets",
        rewards="arrives",
        algorithm={"name": "grpo", "beta": 0.01, "entropy": 0.001},
        train={"steps": 2, "epochs": 2, "updates_per_rollout": 2, "groups_per_step": 4},
        evaluation={"prompts": 4},
        output=str(tmp_path / "run"),
        quiet=True,
    )
    assert result.steps == 2
    last = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-2]
    assert {"kl", "entropy", "clip_fraction"} <= set(json.loads(last))


def test_a_setting_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="horizn: unknown key, did you mean 'horizon'"):
        groupwise.train(
            policy={"name": "controller", "horizn": 10},
            prompts="controller_targets",
            rewards="arrives",
            output=str(tmp_path / "run"),
        )
