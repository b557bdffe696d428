"""Every algorithm of the core satisfies the laws of `groupwise.testing`."""

import tomllib
from pathlib import Path

import pytest

from groupwise import testing
from groupwise.registry import installed

TESTS = Path(__file__).parents[1]
LAWS_OF = {
    "groupwise": "core",
    "language_model": "llm",
    "flow": "flow",
    "verifiable": "verifiable",
    "clip": "clip",
}
"""Plugin: the folder of tests whose `test_laws.py` checks all that it registers.

Reports, commands, trackers and drafts have no checks in `groupwise.testing`."""
SETTINGS = {
    "defaults": {},
    "with KL and entropy": {"beta": 0.1, "kl": "k2", "entropy": 0.05, "mask_truncated": True},
    "all other options": {
        "importance": "sequence",
        "importance_mode": "mask",
        "scale": "batch",
        "beta": 0.1,
        "kl": "exact",
        "advantage_clip": 1.0,
        "ratio_cap": 10.0,
    },
}


def test_every_plugin_has_a_test_of_its_laws(registered):
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    plugins = project["entry-points"]["groupwise"]
    assert {plugin for plugin in plugins if registered(plugin)} == set(LAWS_OF)
    for folder in LAWS_OF.values():
        assert (TESTS / folder / "test_laws.py").exists()


@pytest.mark.parametrize("settings", SETTINGS)
def test_algorithms_of_the_core_satisfy_the_laws(registered, settings):
    entries = registered("groupwise")
    assert {kind for kind, _ in entries} == {"algorithms"}  # another kind needs a test here
    for kind in entries.values():
        fields = kind.Config.model_fields.keys()
        options = {key: value for key, value in SETTINGS[settings].items() if key in fields}
        testing.check_algorithm(kind(kind.Config(**options)))


def test_algorithms_of_other_installed_packages_satisfy_the_laws():
    registry = installed()
    for entry in registry.entries:
        if entry.kind == "algorithms" and entry.plugin not in LAWS_OF:
            testing.check_algorithm(registry.load(entry.kind, f"{entry.plugin}/{entry.name}")())


def test_the_policy_of_these_tests_satisfies_the_laws(lab):
    policy = lab.Tabular()
    testing.check_policy(policy, lab.rows(4))
    testing.check_sampler(policy, policy, lab.rows(4))
