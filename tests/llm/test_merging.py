"""Adapters merged while completions are sampled: the same answers, and nothing that drifts."""

import pytest
import torch

from groupwise_llm.model import merging

LORA = {"rank": 4, "alpha": 16}
KINDS = {
    "linear": ("qwen2", {}),
    "transposed": ("gpt2", {}),
    "embedding": ("llama", {"targets": ["embed_tokens", "q_proj"]}),
    "magnitudes": ("qwen2", {"options": {"use_dora": True}}),
    "stabilised": ("qwen2", {"options": {"use_rslora": True}}),
    "with biases": ("qwen2", {"targets": ["q_proj"], "options": {"lora_bias": True}}),
    "beside whole layers": (
        "llama",
        {"targets": ["q_proj"], "options": {"modules_to_save": ["lm_head"]}},
    ),
}


def trained(policy):
    """Adapters as after a long training, large enough to change every answer."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in policy.keepable().values():
            weight.add_(torch.randn_like(weight) * 0.1)
    return policy


def state(policy):
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


@pytest.mark.parametrize(("architecture", "options"), KINDS.values(), ids=KINDS)
def test_what_is_sampled_is_what_is_trained(make, rows, monkeypatch, architecture, options):
    policy = trained(make(architecture, lora={**LORA, **options}))
    before, made, merged = state(policy), [], merging.merged
    monkeypatch.setattr(merging, "merged", lambda layer: made.append(layer) or merged(layer))
    rollouts = policy.sample(rows, group_size=4, seeds=range(12))
    assert made
    assert len(made) == len(set(map(id, made))) == len(list(merging.adapted(policy.model)))
    with torch.no_grad():
        answers = policy(rollouts).log_probs
    gap = (answers - rollouts.sampler_log_probs)[rollouts.mask].abs().max()
    assert gap < 1e-4
    assert policy.exact
    # Not a bit of the model is another, nor is any of it named otherwise.
    after = state(policy)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    with policy.model.disable_adapter(), torch.no_grad():
        other = policy(rollouts).log_probs
    assert (other - answers)[rollouts.mask].abs().max() > 0.01


def test_layers_are_merged_once_until_weights_change_and_let_go_for_training(
    make, rows, monkeypatch
):
    policy, made, merged = trained(make(lora=LORA)), [], merging.merged
    monkeypatch.setattr(merging, "merged", lambda layer: made.append(1) or merged(layer))
    layers = len(list(merging.adapted(policy.model)))

    def sample():
        made.clear()
        return policy.sample(rows, group_size=2, seeds=range(6))

    rollouts = sample()
    assert len(made) == layers
    assert list(policy.causal.copies.tensors())
    sample()
    assert not made
    policy.keep("before")
    trained(policy)
    sample()
    assert len(made) == layers
    with policy.using("before"):
        again = sample()
        assert len(made) == layers
    torch.testing.assert_close(again.sampler_log_probs, rollouts.sampler_log_probs)
    policy(rollouts).log_probs.sum().backward()
    assert not list(policy.causal.copies.tensors())


def test_a_token_takes_no_product_for_adapters(make, rows):
    """And with `merge: false` it does, of which the answers are the same."""
    answers = []
    for merge in (True, False):
        policy, passed = trained(make(lora={**LORA, "merge": merge})), []
        for name, module in policy.named_modules():
            if name.endswith("lora_A.default"):
                module.register_forward_hook(lambda *_, passed=passed: passed.append(1))
        answers.append(policy.sample(rows, group_size=2, seeds=range(6)).sampler_log_probs)
        assert bool(passed) == (not merge)
    torch.testing.assert_close(*answers, rtol=0, atol=1e-4)


def test_a_reference_without_adapters_is_sampled_without_them(make, rows):
    policy = make(lora=LORA)
    policy.keep("reference")
    first = policy.sample(rows, group_size=2, seeds=range(6))
    trained(policy)
    with policy.using("reference"):
        again = policy.sample(rows, group_size=2, seeds=range(6))
    assert torch.equal(first.sampler_log_probs, again.sampler_log_probs)
