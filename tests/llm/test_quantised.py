"""Adapters on weights that bitsandbytes quantises to 4 or 8 bits, computed on the CPU."""

import importlib.util
from functools import partial

import pytest
import torch

from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise_llm.files import quantization
from groupwise_llm.model import merging
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

LORA = {"rank": 4}
needs = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes"
)


@needs
@pytest.mark.parametrize(
    ("bits", "precision"), [("4bit", "float32"), ("4bit", "bf16"), ("8bit", "float32")]
)
@pytest.mark.slow(after=1)
def test_adapters_learn_on_quantised_weights(make, rows, bits, precision):
    policy = make("llama", quantize=bits, lora=LORA, precision=precision)
    dtypes = {p.dtype for n, p in policy.named_parameters() if n.endswith("proj.base_layer.weight")}
    assert dtypes == {torch.uint8 if bits == "4bit" else torch.int8}
    base = policy.model.model.model.layers[0].mlp.up_proj.base_layer
    if bits == "4bit":
        assert base.weight.quant_type == "nf4"
        assert base.weight.quant_state.nested
        assert base.compute_dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert not policy.exact
    assert not list(merging.adapted(policy.model))
    before = base.weight.detach().clone()
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    trained = [p for p in policy.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    values = []
    for _ in range(3):
        log_probs = policy(rollouts).log_probs
        gap = (log_probs.detach() - rollouts.sampler_log_probs)[rollouts.mask].abs()
        values.append(float((log_probs.detach() * rollouts.mask).sum()))
        assert values[1:] or gap.mean() < 0.02
        (-log_probs * rollouts.mask).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert values[2] > values[0]
    assert torch.equal(base.weight, before)


@needs
@pytest.mark.slow
def test_gradient_checkpointing_through_quantised_layers(make, rows):
    gradients = []
    for recompute in (False, True):
        settings = {"quantize": "4bit", "lora": LORA, "gradient_checkpointing": recompute}
        policy = make("llama", **settings)
        rollouts = policy.sample(rows, group_size=2, seeds=range(6))
        policy(rollouts).log_probs.sum().backward()
        gradients.append([p.grad for p in policy.parameters() if p.requires_grad])
    torch.testing.assert_close(*gradients)


@needs
@pytest.mark.slow
def test_the_estimate_counts_quantised_weights(saved):
    config = partial(Settings, model=str(saved("llama")), max_new_tokens=12, lora=LORA)
    sizes = {}
    for bits in (None, "8bit", "4bit"):
        options = {"decisions": 100, "rollouts": 4, "group_size": 2, "sampled": 4}
        options |= {"training": False, "reference": False, "averages": 0}
        sizes[bits] = LanguageModel.estimate(config(quantize=bits), Workload(**options))["weights"]
    made = LanguageModel(config(quantize="4bit"))
    made.place("cpu")
    expected = sum(p.nbytes for p in made.parameters())
    assert sizes["4bit"] == pytest.approx(expected, rel=0.02)
    assert sizes["4bit"] < sizes["8bit"] < sizes[None]


REFUSED = [
    ({"quantize": "4bit"}, r"policy\.quantize: quantised weights cannot be trained; .* lora: \{\}"),
    (
        {"quantize": "4bit", "lora": LORA, "loading": {"quantization_config": {}}},
        r"policy\.quantize and .*quantization_config both set .* leave out one of them",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_invalid_quantisation_is_refused_before_weights_are_loaded(saved, settings, message):
    settings = Settings(model=str(saved()), max_new_tokens=12, **settings)
    for call in (
        lambda: LanguageModel(settings).place("cpu"),
        lambda: LanguageModel.examine(settings, []),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_without_bitsandbytes_the_error_names_the_pip_command(saved, monkeypatch):
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    settings = Settings(model=str(saved()), max_new_tokens=12, quantize="8bit", lora=LORA)
    with pytest.raises(UserError, match=r"not installed: pip install 'groupwise\[quantized\]'"):
        LanguageModel.examine(settings, [])
