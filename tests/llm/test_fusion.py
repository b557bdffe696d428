"""Norms and rotary embeddings of captured tokens are compiled, and only of these."""

import warnings
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from groupwise_llm.model.fusion import Fusion


def log_probs(policy, count):
    ids = torch.arange(count * 5).view(count, 5) % 7 + 3
    with torch.no_grad():
        return policy.causal.causal(ids).logits.log_softmax(-1)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.slow
def test_compiled_code_computes_the_same_for_any_number_of_rows(make, architecture, rounding):
    torch._dynamo.reset()
    policy, counter = make(architecture), CompileCounterWithBackend("aot_eager")
    compiler = partial(torch.compile, backend=counter, fullgraph=True, dynamic=True)
    fusion = Fusion(policy.causal.causal, compiler)
    # No number of rows is that of heads, tokens or channels: equal sizes are compiled as one.
    expected = {count: log_probs(policy, count) for count in (3, 6, 7)}
    frames = []
    for count, values in expected.items():
        with fusion.on():
            compiled = log_probs(policy, count)
        frames.append(counter.frame_count)
        rounding.same(lambda count=count: log_probs(policy, count), values, compiled)
    assert frames[0] >= 2, "a norm or the rotary embedding is not compiled"
    assert frames == [frames[0]] * 3, "other numbers of rows are compiled anew"


def test_advice_about_products_of_matrices_is_not_shown(make):
    def advised(function):
        def call(*arguments):
            warnings.warn(
                "TensorFloat32 tensor cores for ... available but not enabled.", stacklevel=2
            )
            return function(*arguments)

        return call

    policy = make("llama")
    with Fusion(policy.causal.causal, advised).on():
        log_probs(policy, 2)


def test_code_is_compiled_in_the_context_alone(make):
    calls = []

    def counted(function):
        def call(*arguments):
            calls.append(function.__qualname__)
            return function(*arguments)

        return call

    policy = make("llama")
    fusion = Fusion(policy.causal.causal, counted)
    log_probs(policy, 2)
    assert not calls
    with fusion.on():
        log_probs(policy, 2)
    assert set(calls) == {"LlamaRMSNorm.forward", "apply_rotary_pos_emb"}
    del calls[:]
    with pytest.raises(ValueError, match="a pass that fails"), fusion.on():
        raise ValueError("a pass that fails")
    log_probs(policy, 2)
    assert not calls
