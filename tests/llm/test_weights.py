"""`plain_weights`: the tensors of the model's checkpoint, with adapters merged, for an engine."""

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2Config

from groupwise.kit.errors import UserError
from groupwise_llm.files.weights import plain_weights
from groupwise_llm.model.adapters import with_adapters
from groupwise_llm.settings import Lora

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.2,
}


def model_of(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def untied():
    return model_of(Qwen2Config(**SMALL, tie_word_embeddings=False))


def adapted(model, targets="all-linear", **options):
    """With random adapters, on all linear layers but the head unless `targets` is set."""
    wrapped = with_adapters(model, Lora(rank=2, targets=targets, options=options))
    generator = torch.Generator().manual_seed(1)
    for p in wrapped.parameters():
        if p.requires_grad:
            p.data += torch.randn(p.shape, generator=generator) * 0.2
    return wrapped


@pytest.mark.parametrize("config", [
    Qwen2Config(**SMALL, tie_word_embeddings=True),
    Qwen2Config(**SMALL, tie_word_embeddings=False),
    MixtralConfig(**SMALL, num_local_experts=3),  # whose experts are fused in memory
])  # fmt: skip
def test_weights_are_those_of_a_checkpoint(config, tmp_path):
    model = model_of(config)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    weights = dict(plain_weights(model, None))
    assert weights.keys() == saved.keys()
    assert all(torch.equal(weights[name], saved[name]) for name in saved)
    halved = dict(plain_weights(model, torch.bfloat16))
    assert {tensor.dtype for tensor in halved.values()} == {torch.bfloat16}


@pytest.mark.parametrize("options", [
    {},
    {"use_dora": True},
    {"modules_to_save": ["lm_head"]},
    {"targets": ["embed_tokens", "q_proj"]},
])  # fmt: skip
def test_adapters_are_merged_into_copies(options, rounding):
    wrapped, ids = adapted(untied(), **options), torch.arange(8).unsqueeze(0)
    before = {name: p.detach().clone() for name, p in wrapped.state_dict().items()}
    plain = untied()
    plain.load_state_dict(dict(plain_weights(wrapped.get_base_model(), None)))
    with torch.no_grad():
        rounding.same(lambda: plain(ids).logits, wrapped(ids).logits)
    after = wrapped.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_disabled_adapters_are_left_out():
    wrapped, base = adapted(untied()), untied().state_dict()
    with wrapped.disable_adapter():
        weights = dict(plain_weights(wrapped.get_base_model(), None))
    assert all(torch.equal(weights[name], value) for name, value in base.items())


@pytest.mark.filterwarnings("ignore:.*tied:UserWarning", "ignore:.*tie:UserWarning")
@pytest.mark.parametrize("layer", ["embed_tokens", "lm_head"])
@pytest.mark.parametrize("whole", [False, True])
def test_one_of_two_tied_layers_with_other_weights_is_refused(layer, whole):
    """With adapters, or trained as a whole."""
    tied = model_of(Qwen2Config(**SMALL, tie_word_embeddings=True))
    options = {"modules_to_save": [layer]} if whole else {}
    wrapped = adapted(tied, ["q_proj"] if whole else [layer], **options)
    with pytest.raises(UserError, match="is tied to another layer's, and one of the two has"):
        dict(plain_weights(wrapped.get_base_model(), None))


@pytest.mark.filterwarnings("ignore::peft.PeftWarning", "ignore:.*lora_bias:UserWarning")
def test_adapters_that_cannot_be_merged_are_refused():
    wrapped = adapted(untied(), lora_bias=True)
    with pytest.raises(UserError, match="cannot be merged: Impossible to merge LoRA"):
        dict(plain_weights(wrapped.get_base_model(), None))


@pytest.mark.parametrize("experts", [False, True])
def test_sharded_weights_are_gathered(tmp_path, experts):
    model = model_of(MixtralConfig(**SMALL, num_local_experts=3)) if experts else untied()
    wrapped = adapted(model, use_rslora=True)
    expected = dict(plain_weights(wrapped.get_base_model(), None))
    expected = {name: tensor.clone() for name, tensor in expected.items()}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        for layer in wrapped.get_base_model().model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(wrapped, mesh=mesh)
        assert all(isinstance(p, DTensor) for p in wrapped.parameters())
        weights = dict(plain_weights(wrapped.get_base_model(), None))
        assert all(isinstance(p, DTensor) for p in wrapped.parameters())
    finally:
        torch.distributed.destroy_process_group()
    assert weights.keys() == expected.keys()
    assert not any(isinstance(tensor, DTensor) for tensor in weights.values())
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_policy_yields_weights_in_its_precision(make):
    policy = make("llama", precision="bf16", lora=Lora(rank=2))
    weights = dict(policy.weights())
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert not any("lora" in name or "base" in name for name in weights)
