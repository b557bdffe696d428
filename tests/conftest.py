"""Nothing in the tests asks the model hub for anything; what is registered is that of this tree."""

import os
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # workers that share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

CHECKED = ("policies", "samplers", "adapters", "rewards", "algorithms")
"""The kinds that `groupwise.testing` has a check for."""


@pytest.fixture(scope="session")
def registered() -> Callable[[str], dict[tuple[str, str], Any]]:
    """registered(plugin) -> {(kind, name): what the name stands for}, of what can be checked."""
    from groupwise.plugins.registry import discover

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    points = project["project"]["entry-points"]["groupwise"]
    registry = discover(iter([EntryPoint(*point, "groupwise") for point in points.items()]))
    assert registry.failures == {}

    def of(plugin: str) -> dict[tuple[str, str], Any]:
        assert plugin in points
        return {
            (entry.kind, entry.name): registry.load(entry.kind, entry.name)
            for entry in registry.entries
            if entry.plugin == plugin and entry.kind in CHECKED
        }

    return of
