"""The vision-language policy passes the checks of `groupwise.testing`."""

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


def test_gradient_of_a_trained_tower(make):
    policy = make(vision="trained", lora={"rank": 2}, gradient_checkpointing=True)
    rows = reference.rows()[1:3]
    testing.hold("a trained tower", gradients.LAWS, Case(policy, rows, 2, None))
