"""How often decoding looks at which rows are alive changes what it costs, not what comes out."""

import pytest
import torch

from groupwise_llm.decoding import sampling
from groupwise_llm.decoding.stepping import Cached


def sample(policy, rows, looks, monkeypatch):
    """What is sampled with a look every `looks` tokens, and how many tokens the model was given."""
    tokens = []

    def note(module, inputs, hidden):
        tokens.append(inputs[0].numel())

    hook = policy.model.get_input_embeddings().register_forward_hook(note)
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "check_interval", lambda device: looks)
        rollouts = policy.sample(rows, group_size=4, seeds=range(4 * len(rows)))
    hook.remove()
    return rollouts, sum(tokens)


@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 40, "repetition_penalty": 1.2}, {"stop": ["e"]}]
)
@pytest.mark.parametrize("looks", [3, 7, 100])
def test_rows_that_ended_are_decoded_on_without_effect(make, rows, monkeypatch, settings, looks):
    policy = make(model={"eos_token_id": list(range(40))}, max_new_tokens=24, **settings)
    expected, tokens = sample(policy, rows, 1, monkeypatch)
    assert len(set(expected.lengths.tolist())) > 2
    seldom, more = sample(policy, rows, looks, monkeypatch)
    assert more > tokens
    assert seldom.facts["completion_ids"] == expected.facts["completion_ids"]
    assert seldom.facts["sampled_mass"] == pytest.approx(expected.facts["sampled_mass"], abs=1e-5)
    assert torch.equal(seldom.mask, expected.mask)
    assert torch.equal(seldom.truncated, expected.truncated)
    torch.testing.assert_close(seldom.sampler_log_probs, expected.sampler_log_probs)


def test_the_trial_drops_ended_rows_however_seldom_the_run_looks(make, rows, monkeypatch):
    dropped, keep = [], Cached.keep

    def note(cached, kept):
        if len(kept) < len(cached._position):
            dropped.append(len(kept))
        keep(cached, kept)

    monkeypatch.setattr(Cached, "keep", note)
    monkeypatch.setattr(sampling, "check_interval", lambda device: sampling.CHECK_EVERY)
    assert make().ability.decoding.cached
    assert dropped == [5, 2]  # with a mask and without
