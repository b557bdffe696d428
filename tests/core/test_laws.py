"""GRPO and every environment of the core satisfy the laws of `groupwise.testing`."""

import pytest

from groupwise import testing
from groupwise.registry import installed

PLAYERS = {"single": ["policy"], "pool": ["one", "other"], "chain": ["planner", "writer", "editor"]}
"""By environment."""
SETTINGS = {
    "defaults": {},
    "with KL and entropy": {"beta": 0.1, "kl": "k2", "entropy": 0.05, "mask_truncated": True},
    "all other options": {
        "importance": "sequence",
        "importance_mode": "mask",
        "importance_floor": 0.01,
        "off_policy_mask": 0.5,
        "scale": "batch",
        "beta": 0.1,
        "kl": "exact",
        "advantage_clip": 1.0,
        "ratio_cap": 10.0,
    },
    "decisions of high entropy": {"top_entropy_quantile": 0.4, "normalize": "token"},
}


def grpo(**options):
    kind = installed().load("algorithms", "grpo")
    return kind(kind.Config(**options))


@pytest.mark.parametrize("settings", SETTINGS)
def test_grpo(settings):
    testing.check_algorithm(grpo(**SETTINGS[settings]))


@pytest.mark.parametrize("provides", [{"log_probs"}, {"log_probs", "mean", "std"}])
def test_grpo_with_a_teacher(provides):
    algorithm = grpo(teacher_weight=0.1)
    algorithm.take_teacher(frozenset(provides))
    testing.check_algorithm(algorithm)


@pytest.mark.parametrize("credit", ["return", {"name": "gigpo", "discount": 1.0}], ids=str)
def test_grpo_with_credit_over_turns(credit):
    testing.check_algorithm(grpo(credit=credit))


def test_grpo_by_the_ratio_to_the_sampler():
    testing.check_algorithm(grpo(importance="ratio", beta=0.1))


def test_algorithms_of_other_installed_packages():
    registry = installed()
    for entry in registry.entries:
        if entry.kind == "algorithms" and entry.distribution != "groupwise":
            testing.check_algorithm(registry.load(entry.kind, f"{entry.plugin}/{entry.name}")())


@pytest.mark.parametrize("name", PLAYERS)
def test_environments(lab, name):
    def player(prompt, random):
        return f"{prompt[-8:]}, {random.choice('abc')}"

    environment = installed().load("environments", name)()
    testing.check_environment(environment, lab.rows(3), dict.fromkeys(PLAYERS[name], player))


def test_the_policy_of_these_tests_satisfies_the_laws(lab):
    policy = lab.Tabular()
    testing.check_policy(policy, lab.rows(4))
    testing.check_sampler(policy, policy, lab.rows(4))
