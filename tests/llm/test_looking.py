"""How often decoding looks at which rows are alive changes what it costs, not what comes out."""

import pytest
import torch

from groupwise_llm import sampling

PROMPTS = [torch.tensor([70, 71, 72, 73]), torch.tensor([80, 81])]
LENGTH = 24


def decode(policy, looks, monkeypatch):
    """What is sampled with a look every `looks` tokens, and the rows of every step."""
    steps = []
    hidden = policy.hidden

    def counted(*args, **kwargs):
        steps.append(len(args[0]))
        return hidden(*args, **kwargs)

    draws = sampling.uniforms(range(8), LENGTH)
    with monkeypatch.context() as patch:
        patch.setattr(policy, "hidden", counted)
        patch.setattr(sampling, "look_every", lambda device: looks)
        return sampling.decode(policy._decoder(), PROMPTS, 4, draws), steps


@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 40, "repetition_penalty": 1.2}, {"stop": ["e"]}]
)
@pytest.mark.parametrize("looks", [3, 7, 100])
def test_rows_that_ended_are_decoded_on_without_effect(make, monkeypatch, settings, looks):
    ends = {"eos_token_id": list(range(40))}
    policy = make(model=ends, max_new_tokens=LENGTH, **settings)
    expected, steps = decode(policy, 1, monkeypatch)
    assert len(set(expected.mask.sum(dim=1).tolist())) > 2
    found, more = decode(policy, looks, monkeypatch)
    assert sum(more) > sum(steps)
    for name in ("ids", "mask", "truncated"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    for name in ("log_probs", "kept"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
