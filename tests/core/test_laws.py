"""Every algorithm and environment of the core satisfies the laws of `groupwise.testing`."""

from itertools import product

import pytest

from groupwise import testing
from groupwise.registry import installed

ALGORITHMS = (
    *("grpo", "dr_grpo", "dapo", "gspo", "gdpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    *("rloo", "reinforce_pp", "reinforce_pp_baseline", "guard", "lead", "dppo", "gmpo"),
)
WITH_THE_LOSS_OF_RLOO = ("maxrl", "opo", "pass_at_k", "rae")
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
OF_DPPO = {"importance": "none", "divergence": "kl", "max_divergence": 0.01}
CASES = [
    *product((*ALGORITHMS, *WITH_THE_LOSS_OF_RLOO), ["defaults"]),
    *product(ALGORITHMS, ["with KL and entropy", "all other options"]),
    *product(("grpo", "gspo", "reinforce_pp"), ["decisions of high entropy"]),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_algorithms(name, settings):
    kind = installed().load("algorithms", name)
    fields = kind.Config.model_fields.keys()
    options = {key: value for key, value in SETTINGS[settings].items() if key in fields}
    if name == "dppo" and settings == "all other options":
        options |= OF_DPPO
    testing.check_algorithm(kind(kind.Config(**options)))


@pytest.mark.parametrize(
    ("name", "provides"),
    [
        ("grpo", {"log_probs"}),
        ("grpo", {"log_probs", "mean", "std"}),
        ("reinforce_pp", {"log_probs"}),
        ("vespo", {"log_probs"}),
    ],
)
def test_algorithms_with_a_teacher(name, provides):
    kind = installed().load("algorithms", name)
    algorithm = kind(kind.Config(teacher_weight=0.1))
    algorithm.take_teacher(frozenset(provides))
    testing.check_algorithm(algorithm)


@pytest.mark.parametrize("credit", ["return", {"name": "gigpo", "discount": 1.0}], ids=str)
def test_algorithms_with_credit_over_turns(credit):
    kind = installed().load("algorithms", "grpo")
    testing.check_algorithm(kind(kind.Config(credit=credit)))


@pytest.mark.parametrize("name", ["grpo", "gspo", "sapo"])
def test_algorithms_by_the_ratio_to_the_sampler(name):
    kind = installed().load("algorithms", name)
    testing.check_algorithm(kind(kind.Config(importance="ratio", beta=0.1)))


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
