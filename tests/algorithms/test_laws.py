"""Every variant of GRPO satisfies the laws of `groupwise.testing`."""

from itertools import product

import pytest
from tests.core.test_laws import SETTINGS

from groupwise import testing
from groupwise.registry import installed

ALGORITHMS = (
    *("dr_grpo", "dapo", "gspo", "gdpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    *("rloo", "reinforce_pp", "reinforce_pp_baseline", "guard", "lead", "dppo", "gmpo"),
)
WITH_THE_LOSS_OF_RLOO = ("maxrl", "opo", "pass_at_k", "rae")
OF_DPPO = {"importance": "none", "divergence": "kl", "max_divergence": 0.01}
OPTIONS = SETTINGS | {
    "all options": SETTINGS["all other options"] | SETTINGS["with KL and entropy"]
}
"""Each apart, as GRPO has them in the tests of the core, would take twice as long."""
CASES = [
    *product((*ALGORITHMS, *WITH_THE_LOSS_OF_RLOO), ["defaults"]),
    *product(ALGORITHMS, ["all options"]),
    *product(("gspo", "reinforce_pp"), ["decisions of high entropy"]),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_algorithms(name, settings):
    kind = installed().load("algorithms", name)
    fields = kind.Config.model_fields.keys()
    options = {key: value for key, value in OPTIONS[settings].items() if key in fields}
    if name == "dppo" and settings == "all options":
        options |= OF_DPPO
    testing.check_algorithm(kind(kind.Config(**options)))


@pytest.mark.parametrize("name", ["reinforce_pp", "vespo"])
def test_algorithms_with_a_teacher(name):
    kind = installed().load("algorithms", name)
    algorithm = kind(kind.Config(teacher_weight=0.1))
    algorithm.take_teacher(frozenset({"log_probs"}))
    testing.check_algorithm(algorithm)


@pytest.mark.parametrize("name", ["gspo", "sapo"])
def test_algorithms_by_the_ratio_to_the_sampler(name):
    kind = installed().load("algorithms", name)
    testing.check_algorithm(kind(kind.Config(importance="ratio", beta=0.1)))
