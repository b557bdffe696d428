"""bf16: a copy of the weights in bf16 computes, the trained weights and gradients are float32."""

import copy

import pytest
import torch
from torch.distributed import HashStore
from torch.nn.parallel import DistributedDataParallel
from transformers import CONFIG_MAPPING

from groupwise.kit.errors import UserError
from groupwise.weights import KeptWeights, kept_parameters
from groupwise_llm.model import causal
from groupwise_llm.model.copies import Copies, Numerics
from groupwise_llm.settings import Settings

BF16 = Numerics(precision="bf16", plain_head=True)


def loss(policy, rollouts):
    policy.zero_grad(set_to_none=True)
    (policy(rollouts).log_probs * rollouts.mask).sum().backward()
    return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


def relative_distance(ours, theirs):
    ours, theirs = (torch.cat([g.flatten().double() for g in x.values()]) for x in (ours, theirs))
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 4}}, {"head_precision": "float32"}])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_are_float32_and_close_to_those_of_training_in_float32(
    make, rows, settings, recompute
):
    exact = make(**{k: v for k, v in settings.items() if k == "lora"})
    policy = make(precision="bf16", gradient_checkpointing=recompute, **settings)
    assert policy.notes == []
    rollouts = exact.sample(rows, group_size=2, seeds=range(6))
    gradients = loss(policy, rollouts)
    assert {g.dtype for g in gradients.values()} == {torch.float32}
    assert relative_distance(gradients, loss(exact, rollouts)) < 0.05


@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 4}, "loading": {"dtype": "bfloat16"}}])
def test_all_layers_compute_in_bf16(make, rows, monkeypatch, settings):
    policy, caches, dtypes = make("llama", precision="bf16", **settings), [], set()
    new_cache = causal.CausalModel.new_cache
    monkeypatch.setattr(
        causal.CausalModel, "new_cache", lambda self: caches.append(new_cache(self)) or caches[-1]
    )
    for module in policy.causal.causal.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, inputs, output: dtypes.add(output.dtype))
    policy.sample(rows, group_size=2, seeds=range(6))
    assert {layer.keys.dtype for cache in caches for layer in cache.layers} == {torch.bfloat16}
    assert dtypes == {torch.bfloat16}
    if "loading" in settings:  # weights that are bf16 already are not copied
        frozen = {p.data_ptr() for p in policy.parameters() if p.dtype == torch.bfloat16}
        adapters = sum(p.numel() for p in kept_parameters(policy).values())
        policy(policy.sample(rows, group_size=1, seeds=range(3))).log_probs.sum().backward()
        assert sum(t.numel() for t in policy.causal.copies.tensors()) == adapters
        assert not frozen & {t.data_ptr() for t in policy.causal.copies.tensors()}


def test_tied_weights_have_one_copy_and_one_gradient(make, rows):
    policy, exact = make(precision="bf16"), make()
    tied = policy.model.lm_head.weight
    assert tied is policy.model.model.embed_tokens.weight
    rollouts = exact.sample(rows, group_size=2, seeds=range(6))
    gradients, expected = loss(policy, rollouts), loss(exact, rollouts)
    name = "causal.model.model.embed_tokens.weight"
    assert relative_distance({name: gradients[name]}, {name: expected[name]}) < 0.05
    sizes = [p.numel() for p in policy.parameters()]
    assert sum(t.numel() for t in policy.causal.copies.tensors()) == sum(sizes)


def test_a_copy_is_renewed_when_its_weight_changes(make, rows):
    """By an optimizer, by swapping in kept weights, or by loading a state."""
    policy = make(precision="bf16")

    def sampled():
        return policy.sample(rows, group_size=2, seeds=range(6)).sampler_log_probs

    first, state = sampled(), copy.deepcopy(policy.state_dict())
    kept = KeptWeights(policy)
    kept.keep("first")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.05)
    loss(policy, policy.sample(rows, group_size=2, seeds=range(6)))
    optimizer.step()
    assert not torch.equal(sampled(), first)
    with kept.using("first"):
        assert torch.equal(sampled(), first)
    assert not torch.equal(sampled(), first)
    policy.load_state_dict(state)
    assert torch.equal(sampled(), first)
    other = copy.deepcopy(policy)
    with torch.no_grad():
        other.model.model.norm.weight.mul_(1.5)
    changed = other.sample(rows, group_size=2, seeds=range(6)).sampler_log_probs
    assert not torch.equal(changed, first)
    assert torch.equal(sampled(), first)


def test_a_head_in_float32_gives_more_exact_log_probs(make, rows):
    exact = make("llama")
    rollouts = exact.sample(rows, group_size=8, seeds=range(24))
    errors = {}
    for head in ("bf16", "float32"):
        policy = make("llama", precision="bf16", head_precision=head)
        with torch.no_grad():
            gap = policy(rollouts).log_probs - exact(rollouts).log_probs
        errors[head] = float(gap[rollouts.mask].square().mean())
    assert errors["float32"] < errors["bf16"]


def test_a_float32_head_of_a_model_that_computes_its_own_logits(make, rows):
    policy = make("gemma2", precision="bf16", head_precision="float32")
    assert not policy.ability.numerics.plain_head
    dtypes = set()
    policy.model.lm_head.register_forward_hook(lambda _, __, logits: dtypes.add(logits.dtype))
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    assert loss(policy, rollouts)
    assert dtypes == {torch.float32}
    gap = (policy(rollouts).log_probs - rollouts.sampler_log_probs)[rollouts.mask].abs()
    assert gap.max() < 0.1


def test_modules_that_transformers_keeps_in_float32_stay_float32(make_of):
    config = CONFIG_MAPPING["qwen2"](
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, vocab_size=258, eos_token_id=0,
    )  # fmt: skip
    policy = make_of(config, precision="bf16")
    policy.model._keep_in_fp32_modules_strict = {"layernorm"}
    with Copies(policy.model).swapped_in(BF16):
        layer = policy.model.model.layers[0]
        assert layer.input_layernorm.weight.dtype == torch.float32
        assert layer.mlp.up_proj.weight.dtype == torch.bfloat16
    assert layer.mlp.up_proj.weight.dtype == torch.float32


def test_a_model_that_does_not_run_in_bf16_is_refused(make):
    policy = make(precision="bf16")
    norm = policy.model.model.norm
    norm.register_forward_hook(lambda _, __, out: out @ torch.eye(out.shape[-1]))
    with pytest.raises(UserError, match=r"does not run in bf16 \(.*\); set policy.precision"):
        policy.place("cpu")


def test_a_bf16_head_on_a_float32_model_is_refused():
    with pytest.raises(ValueError, match="head_precision: bf16 needs precision: bf16"):
        Settings(model="m", head_precision="bf16")


def test_data_parallel_training_reduces_gradients_in_float32(make, rows):
    exact, policy = make(), make(precision="bf16", gradient_checkpointing=True)
    rollouts = exact.sample(rows, group_size=2, seeds=range(6))
    expected = loss(policy, rollouts)
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        policy.zero_grad(set_to_none=True)
        parallel, dtypes = DistributedDataParallel(policy), set()
        parallel.register_comm_hook(None, lambda _, bucket: reduced(bucket, dtypes))
        (parallel(rollouts).log_probs * rollouts.mask).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert dtypes == {torch.float32}
    assert relative_distance({n: p.grad for n, p in policy.named_parameters()}, expected) == 0


def reduced(bucket, dtypes):
    dtypes.add(bucket.buffer().dtype)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
