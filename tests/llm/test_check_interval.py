"""The interval at which decoding checks for ended rows changes its cost, not its completions."""

import pytest
import torch

from groupwise_llm.decoding import batches
from groupwise_llm.decoding.stepping import Cached


def sample(policy, rows, interval, monkeypatch):
    """Rollouts with a check every `interval` tokens, and how many tokens the model computed."""
    tokens = []

    def count(module, inputs, hidden):
        tokens.append(inputs[0].numel())

    hook = policy.model.get_input_embeddings().register_forward_hook(count)
    with monkeypatch.context() as patch:
        patch.setattr(batches, "check_interval", lambda device: interval)
        rollouts = policy.sample(rows, group_size=4, seeds=range(4 * len(rows)))
    hook.remove()
    return rollouts, sum(tokens)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("interval", "settings"),
    [
        (3, {}),
        (100, {}),
        (7, {"top_k": 40, "repetition_penalty": 1.2}),
        (100, {"stop": ["e"]}),
    ],
)
def test_decoding_ended_rows_further_has_no_effect(
    make, rows, monkeypatch, settings, interval, rounding
):
    policy = make(model={"eos_token_id": list(range(40))}, max_new_tokens=24, **settings)
    expected, tokens = sample(policy, rows, 1, monkeypatch)
    assert len(set(expected.lengths.tolist())) > 2
    rollouts, more_tokens = sample(policy, rows, interval, monkeypatch)
    assert more_tokens > tokens
    assert rollouts.facts["completion_ids"] == expected.facts["completion_ids"]
    assert torch.equal(rollouts.mask, expected.mask)
    assert torch.equal(rollouts.truncated, expected.truncated)

    def drawn():
        own, _ = sample(policy, rows, 1, monkeypatch)
        assert own.facts["completion_ids"] == expected.facts["completion_ids"]
        return own.facts["sampled_mass"], own.sampler_log_probs

    rounding.same(drawn, (rollouts.facts["sampled_mass"], rollouts.sampler_log_probs))


def test_the_trial_run_always_drops_ended_rows(make, rows, monkeypatch):
    remaining, keep = [], Cached.keep

    def recorded(cached, kept):
        if len(kept) < len(cached.positions):
            remaining.append(len(kept))
        keep(cached, kept)

    monkeypatch.setattr(Cached, "keep", recorded)
    monkeypatch.setattr(batches, "check_interval", lambda device: batches.CHECK_EVERY)
    assert make().ability.decoding.cached
    assert remaining == [5, 2, 1]  # with a mask, without, and where a cache goes on
