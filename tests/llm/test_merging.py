"""Adapters merged for sampling: the log-probs stay the same, and the weights are unchanged."""

import pytest
import torch

from groupwise.weights import KeptWeights, kept_parameters
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
    """Makes the adapters large enough to change every log-prob."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in kept_parameters(policy).values():
            weight.add_(torch.randn_like(weight) * 0.1)
    return policy


def state(policy):
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(("architecture", "options"), KINDS.values(), ids=KINDS)
def test_sampling_with_merged_adapters_has_the_log_probs_of_training(
    make, rows, monkeypatch, architecture, options, rounding
):
    policy = trained(make(architecture, lora={**LORA, **options}))
    before, layers, merged = state(policy), [], merging.merged
    monkeypatch.setattr(merging, "merged", lambda *own: layers.append(own[1]) or merged(*own))
    rollouts = policy.sample(rows, group_size=4, seeds=range(12))
    assert layers
    assert len(layers) == len(set(map(id, layers))) == len(list(merging.adapted(policy.model)))
    with torch.no_grad():
        log_probs = policy(rollouts).log_probs
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs)
    assert policy.exact
    # The model's parameters and their names are unchanged, bit for bit.
    after = state(policy)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    with policy.model.disable_adapter(), torch.no_grad():
        without_adapters = policy(rollouts).log_probs
    assert (without_adapters - log_probs)[rollouts.mask].abs().max() > 0.01


def test_merged_layers_are_reused_until_weights_change_and_freed_for_training(
    make, rows, monkeypatch, rounding
):
    policy, merges, merged = trained(make(lora=LORA)), [], merging.merged
    monkeypatch.setattr(merging, "merged", lambda *own: merges.append(1) or merged(*own))
    layers = len(list(merging.adapted(policy.model)))

    def sample():
        merges.clear()
        return policy.sample(rows, group_size=2, seeds=range(6))

    rollouts = sample()
    assert len(merges) == layers
    assert list(policy.causal.copies.tensors())
    sample()
    assert not merges
    kept = KeptWeights(policy)
    kept.keep("before")
    trained(policy)
    sample()
    assert len(merges) == layers
    with kept.using("before"):
        again = sample()
        assert len(merges) == layers
        rounding.same(
            lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs, again.sampler_log_probs
        )
    policy(rollouts).log_probs.sum().backward()
    assert not list(policy.causal.copies.tensors())


def test_merged_adapters_cost_no_product_per_token(make, rows, rounding):
    """With `merge: false` they do, and the log-probs are the same."""
    log_probs = []
    for merge in (True, False):
        policy, products = trained(make(lora={**LORA, "merge": merge})), []
        for name, module in policy.named_modules():
            if name.endswith("lora_A.default"):
                module.register_forward_hook(lambda *_, products=products: products.append(1))
        rollouts = policy.sample(rows, group_size=2, seeds=range(6))
        log_probs.append(rollouts.sampler_log_probs)
        assert bool(products) == (not merge)
    rounding.same(lambda: policy(rollouts).log_probs, *log_probs)


def test_a_reference_without_adapters_is_sampled_without_them(make, rows):
    policy = make(lora=LORA)
    kept = KeptWeights(policy)
    kept.keep("reference")
    first = policy.sample(rows, group_size=2, seeds=range(6))
    trained(policy)
    with kept.using("reference"):
        again = policy.sample(rows, group_size=2, seeds=range(6))
    assert torch.equal(first.sampler_log_probs, again.sampler_log_probs)
