"""The package as a plugin: its names, its settings, and runs with them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import groupwise
from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.plugins.resolved import resolve
from groupwise.registry import installed
from groupwise.storage.checkpoint import Checkpoints

NAMES = {
    ("policies", "language_model_with_critic"),
    ("algorithms", "ppo"),
    ("algorithms", "hybrid_grpo"),
}


def test_every_name_is_registered_and_loads() -> None:
    registry = installed()
    ours = [entry for entry in registry.entries if entry.plugin == "ppo"]
    assert {(entry.kind, entry.name) for entry in ours} == NAMES
    for entry in ours:
        assert registry.load(entry.kind, entry.name).__doc__


def spells_a(completions: Sequence[str], **_: Any) -> list[float]:
    """The share of the letters that are a."""
    return [text.count("a") / 8 for text in completions]


def run(
    model: Path, folder: Path, algorithm: str, *, steps: int, **more: Any
) -> groupwise.RunResult:
    return groupwise.train(
        policy={
            "name": "language_model_with_critic",
            "model": str(model),
            "max_new_tokens": 8,
            "critic_rate": 3.0,
        },
        prompts=[{"prompt": text} for text in ("abc", "bad", "cab", "dead", "fed", "he")],
        rewards=[spells_a],
        algorithm={"name": algorithm, **more.pop("options", {})},
        train={
            "steps": steps,
            "groups_per_step": 4,
            "group_size": 4,
            "learning_rate": 1e-2,
            "updates_per_rollout": 2,
            **more.pop("train", {}),
        },
        evaluation={"prompts": 1, "samples": 8},
        output=str(folder),
        quiet=True,
        **{"prompts.held_out": 0.3},
        **more,
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of each step, except times."""
    read = [json.loads(x) for x in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [
        {
            k: v
            for k, v in line.items()
            if not any(word in k for word in ("time", "second", "memory"))
        }
        for line in read
        if "loss" in line
    ]


@pytest.mark.parametrize("algorithm", ["ppo", "hybrid_grpo"])
def test_it_learns_and_so_does_its_critic(model: Path, tmp_path: Path, algorithm: str) -> None:
    result = run(model, tmp_path / "run", algorithm, steps=8)
    assert result.after["reward"] > result.before["reward"] + 0.2
    steps = lines(tmp_path / "run")
    assert steps[0]["value"] != 0.0  # of the second update; before the first all were 0
    assert {"value_error", "clip_fraction"} <= set(steps[-1])
    assert max(step.get("mismatch/max", 0.0) for step in steps) < 1e-4


def test_a_run_resumes_exactly(model: Path, tmp_path: Path) -> None:
    """With a reference and a moving average; neither copies the critic."""
    more: dict[str, Any] = {"train": {"ema": 0.9}, "options": {"beta": 0.05}}
    run(model, tmp_path / "through", "ppo", steps=2, **more)
    average = Checkpoints(tmp_path / "through" / "checkpoints").last() / "kept_average.safetensors"
    assert not [key for key in load_file(average) if key.startswith("critic.")]
    run(model, tmp_path / "halved", "ppo", steps=1, **more)
    run(model, tmp_path / "halved", "ppo", steps=2, resume=True, **more)
    assert lines(tmp_path / "halved") == lines(tmp_path / "through")
    one, other = (
        Checkpoints(tmp_path / name / "checkpoints").last() for name in ("through", "halved")
    )
    for name in ("weights", "optimizer", "kept_average"):
        file = f"{name}.safetensors"
        assert (one / file).read_bytes() == (other / file).read_bytes()
    models = [tmp_path / name / "model" / "critic" for name in ("through", "halved")]
    assert len({(path / "model.safetensors").read_bytes() for path in models}) == 1


def test_the_shipped_configuration_fits() -> None:
    loaded = load_config(Path(__file__).parents[1] / "train.yaml", [])
    resolved = resolve(loaded)
    resolved.check()
    targets = [resolved.plugins[name,].target for name in ("policy", "algorithm")]
    assert {target.__name__ for target in targets} == {
        "LanguageModelWithCritic",
        "PPO",
    }


def test_a_policy_without_a_critic_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'ppo' needs value, which policy 'language_model' does"):
        groupwise.train(
            policy={"name": "language_model", "model": str(model), "max_new_tokens": 8},
            prompts=[{"prompt": "abc"}, {"prompt": "bad"}],
            rewards=[spells_a],
            algorithm="ppo",
            output=str(tmp_path / "run"),
        )
