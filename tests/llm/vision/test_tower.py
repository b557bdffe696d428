"""The tower: what it makes of pictures is kept where it is frozen, and learns where it is to."""

import pytest
import torch
from tests.llm.vision import reference, standins


@pytest.fixture
def seen(monkeypatch):
    """seen(policy) -> a list to which each call of the tower adds the number of its pictures."""

    def counting(policy):
        calls, family = [], policy.causal.family
        features = family.features
        monkeypatch.setattr(
            family, "features", lambda model, own: calls.append(len(own)) or features(model, own)
        )
        return calls

    return counting


ROWS = reference.rows()
DIFFERENT = 6


def test_a_frozen_tower_sees_each_picture_once(make, seen):
    policy = make()
    calls = seen(policy)
    rollouts = policy.sample(ROWS, group_size=3, seeds=range(12))
    for _ in range(2):
        policy(rollouts).log_probs.sum().backward()
        with torch.no_grad():
            next(p for p in policy.parameters() if p.requires_grad).mul_(1.01)
    policy.sample(ROWS[::-1], group_size=1, seeds=range(4))
    assert calls == [1] * DIFFERENT
    policy.sample([{"prompt": ROWS[0]["prompt"], "image": standins.picture(8, 8, 9)}], **ONE)
    assert calls == [1] * (DIFFERENT + 1)


ONE = {"group_size": 1, "seeds": [0]}


def test_features_are_kept_up_to_a_number_of_tokens(make, seen):
    policy = make(feature_tokens=20)
    calls = seen(policy)
    for _ in range(2):
        policy.sample(ROWS[1:2], **ONE)  # of 4 tokens
    assert calls == [1]
    policy.sample(ROWS[3:], **ONE)
    policy.sample(ROWS[1:2], **ONE)
    assert calls == [1, 1, 1, 1, 1]


def test_a_trained_tower_sees_each_picture_once_in_a_pass(make, seen):
    policy = make(vision="trained")
    calls = seen(policy)
    rollouts = policy.sample(ROWS, group_size=3, seeds=range(12))
    policy(rollouts).log_probs.sum().backward()
    assert calls == [1] * DIFFERENT + [DIFFERENT]
    weight = policy.model.model.visual.blocks[0].attn.qkv.weight
    assert weight.grad.abs().max() > 0
    with torch.no_grad():
        policy(rollouts)
        assert len(calls) == DIFFERENT + 1  # those of sampling
        weight.add_(weight.grad, alpha=0.1)
        other = policy(rollouts).log_probs
    assert calls[DIFFERENT:] == [DIFFERENT, *[1] * DIFFERENT]
    assert not torch.allclose(other, rollouts.sampler_log_probs)


def test_a_trained_tower_has_a_gradient_in_a_pass_without_pictures(make):
    """DDP waits for the gradient of each weight."""
    policy = make(vision="trained", lora={"rank": 2})
    rollouts = policy.sample(ROWS[:1], group_size=2, seeds=range(2))
    policy(rollouts).log_probs.sum().backward()
    learned = {name: p.grad for name, p in policy.named_parameters() if p.requires_grad}
    assert any("visual" in name for name in learned)
    assert all(grad is not None for grad in learned.values())
    assert not any(grad.any() for name, grad in learned.items() if "visual" in name)


def test_adapters_are_on_the_text_model_unless_the_tower_is_trained(make):
    def adapted(policy):
        return {name.split(".lora_")[0] for name, p in policy.named_parameters() if p.requires_grad}

    text = adapted(make(lora={"rank": 2}))
    both = adapted(make(lora={"rank": 2}, vision="trained"))
    assert text
    assert not any("visual" in name for name in text)
    assert text < both
    assert any("visual" in name for name in both - text)
