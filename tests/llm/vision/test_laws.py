"""The vision-language policy passes the checks of `groupwise.testing`."""

import pytest
from tests.llm.vision import reference

from groupwise import testing
from groupwise_testing.policy import gradients
from groupwise_testing.policy.case import Case


def test_policy(make):
    policy = make(temperature=0.8)
    rows = reference.rows()[:3]

    def load(path):
        return make(model=str(path), temperature=0.8)

    testing.check_policy(policy, rows, group_size=2, load=load)
    testing.check_sampler(policy, policy, rows, group_size=2)


TRAINED = {
    "in full": {},
    "adapters, checkpointing": {"lora": {"rank": 2}, "gradient_checkpointing": True},
}


@pytest.mark.parametrize("form", TRAINED)
def test_gradient_of_a_trained_tower(make, form):
    policy = make(vision="trained", **TRAINED[form])
    testing.hold(form, gradients.LAWS, Case(policy, reference.rows()[1:3], 2, None))
