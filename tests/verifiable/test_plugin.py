"""Registered rewards exist, have a Config, and import no heavy module before they are used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from groupwise_verifiable import plugin


class Registry:
    """Records what is registered."""

    def __init__(self) -> None:
        self.targets: dict[str, str] = {}
        self.extras: dict[str, str | None] = {}

    def __call__(self, name: str, target: str, *, extra: str | None = None) -> None:
        self.targets[name], self.extras[name] = target, extra


def loaded(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def test_rewards() -> None:
    registry = Registry()
    plugin.register_rewards(registry)
    assert registry.targets
    for target in registry.targets.values():
        reward = loaded(target)
        assert callable(reward)
        assert reward.__doc__
        config = getattr(reward, "Config", None)
        if config is not None:
            assert issubclass(config, BaseModel)
            assert config.model_config["extra"] == "forbid"
            assert config.model_config["frozen"]
            assert all(field.description for field in config.model_fields.values())


def test_prompts() -> None:
    registry = Registry()
    plugin.register_prompts(registry)
    assert registry.extras == {"reasoning_gym": "llm"}
    assert loaded(registry.targets["reasoning_gym"]).__name__ == "ReasoningGym"


def test_rewards_of_images_import_no_heavy_modules() -> None:
    heavy = ("torch", "scipy", "PIL", "transformers", "rapidocr", "onnxruntime", "cv2")
    modules = ("contents", "ocr", "jpeg", "diversity", "clip_colors", "zero_shot")
    script = (
        f"import sys, {', '.join(f'groupwise_verifiable.images.{name}' for name in modules)};"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == "[]"


def test_worker_modules_do_not_import_the_core() -> None:
    script = (
        "import sys, groupwise_verifiable.mathematics.published;"
        "import groupwise_verifiable.puzzles.check;"
        "print([name for name in ('torch', 'groupwise') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == "[]"


def test_every_reward_says_whether_1_means_right() -> None:
    """A run logs an accuracy for rewards that judge, and the mean reward for the others."""
    registry = Registry()
    plugin.register_rewards(registry)
    for name, target in registry.targets.items():
        judges = getattr(loaded(target), "judges", None)
        assert judges in (True, False), f"{name}: set `judges` to True if 1 means right, else False"
