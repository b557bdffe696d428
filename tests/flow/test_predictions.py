"""Predictions: the final picture as predicted after each denoising step, a fact for rewards."""

import pytest
import torch

from groupwise.rewards import Reward
from groupwise.scoring.scorer import Scorer
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.passes import guidance
from groupwise_verifiable.images.per_step import PerStep

ROWS = [{"prompt": "a cat"}, {"prompt": "b cat"}]
WINDOWS = [{"kind": "all"}, {"kind": "random", "size": 2}, {"kind": "fixed", "size": 2, "start": 1}]


def drawn(policy, *, purpose="train", requested=True):
    facts = policy.optional_facts if requested else frozenset()
    policy.prepare(outputs=policy.provides, facts=facts)
    policy.begin(1)
    return policy.sample(ROWS, group_size=2, seeds=[11, 12, 13, 14], purpose=purpose)


def restated(policy, rollouts, row, place):
    """The prediction from the trajectory: x0 = x - sigma v, guided as in sampling and decoded."""
    guided, config = policy.guided, policy.config
    x = rollouts.trajectory["path"][row][place].unsqueeze(0)
    sigma = policy.sigmas[int(rollouts.tensor("first")[row]) + place].expand(1)
    prompt = [rollouts.prompts[row]]
    negative = guided.negative(prompt, config.guidance_in_training)
    velocity, _ = guided.velocity(
        x,
        sigma,
        guided.conditions(prompt),
        config.guidance_in_training,
        negative=negative,
    )
    return policy.adapter.completions(x - sigma * velocity)[1][0]


@pytest.mark.slow(after=2)
@torch.no_grad()
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window["kind"])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_predictions_are_made_before_and_after_each_decision(lab, window, guidance, rounding):
    policy = lab.policy(window=window, guidance=guidance, batch=3)
    rollouts = drawn(policy)
    decisions = rollouts.mask.shape[1]
    predictions = rollouts.facts["predictions"]
    size = rollouts.facts["pixels"][0].shape
    assert [tuple(own.shape) for own in predictions] == [(decisions + 1, *size)] * 4
    assert all(own.dtype == torch.float32 and own.device.type == "cpu" for own in predictions)
    for row in (0, 3):
        for place in (0, 1, decisions):
            own = predictions[row][place]
            rounding.same(lambda at=(row, place): restated(policy, rollouts, *at), own)


def test_predictions_are_computed_only_for_rewards_that_read_them(lab, monkeypatch):
    policy = lab.policy(window={"kind": "fixed", "size": 2})
    decoded = []
    decode = type(policy.adapter).decode
    monkeypatch.setattr(
        type(policy.adapter), "decode", lambda a, x: decoded.append(len(x)) or decode(a, x)
    )
    plain, predicted = drawn(policy, requested=False), drawn(policy)
    assert "predictions" not in plain.facts
    assert decoded == [4, 4, 12]
    for name in ("pixels", "path"):
        columns = [{**r.facts, **r.trajectory}[name] for r in (plain, predicted)]
        assert all(torch.equal(*pair) for pair in zip(*columns, strict=True))


def test_predictions_are_decoded_in_parts_no_larger_than_those_of_pictures(
    lab, monkeypatch, rounding
):
    policy = lab.policy(window={"kind": "fixed", "size": 2}, batch=64)
    whole = drawn(policy)
    decoded = []
    decode = type(policy.adapter).decode
    monkeypatch.setattr(
        type(policy.adapter), "decode", lambda a, x: decoded.append(len(x)) or decode(a, x)
    )
    monkeypatch.setattr(guidance, "DECODED", 3 * 16 * 16)
    parts = drawn(policy)
    assert decoded == [3, 1] + [3] * 4  # 4 pictures, and 3 predictions of each

    def pictures(rollouts):
        return [list(rollouts.facts[name]) for name in ("pixels", "predictions")]

    rounding.same(lambda: pictures(drawn(policy)), pictures(whole), pictures(parts))


def test_evaluation_has_no_predictions(lab):
    policy = lab.policy(evaluation_steps=2)
    rollouts = drawn(policy, purpose="evaluate")
    assert {len(own) for own in rollouts.facts["predictions"]} == {0}


def test_a_reward_of_pictures_gives_each_step_its_gain(lab, rounding):
    """From the scorer to advantages of single decisions, by how much each raised the reward."""

    def red(prompts, completions, pixels):
        return [float(image[0].mean()) for image in pixels]

    policy = lab.policy(window={"kind": "fixed", "size": 2, "start": 1})
    rollouts = drawn(policy)
    reward = PerStep(PerStep.Config(reward=red))
    scores = Scorer([Reward(name="red", function=reward)])(rollouts)
    for row, own in enumerate(rollouts.facts["predictions"]):
        rounding.same(lambda own=own: own[:, 0].mean(dim=(1, 2)).diff(), scores.steps[row])
    advantages = FlowGRPO().targets(scores, rollouts, {})["advantages"]
    assert advantages.shape == rollouts.mask.shape
    assert bool((advantages[:, 0] != advantages[:, 1]).any())
