"""Rotary frequencies that depend on the longest position in a pass: one set for the whole run."""

import pytest
import torch
from transformers import CONFIG_MAPPING

from groupwise.kit.errors import UserError
from groupwise_llm.model import rotary
from groupwise_llm.policy import LanguageModel

ORIGINAL, POSITIONS = 32, 96
SMALL = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 4.0, 8.0, 16.0],
    "original_max_position_embeddings": ORIGINAL,
}
MODELS = {
    "longrope": ("phi3", LONG),
    "of another architecture": ("llama", LONG),
    "phimoe": ("phimoe", {**LONG, "short_mscale": 1.0, "long_mscale": 1.3}),
}
SHORT, BEYOND = {"prompt": "7-5="}, {"prompt": "1+2=3;" * 8}


def config_of(name):
    architecture, rope = MODELS[name]
    experts = {"num_local_experts": 4} if architecture == "phimoe" else {}
    limit = {"original_max_position_embeddings": ORIGINAL} if architecture == "phi3" else {}
    kind = CONFIG_MAPPING[architecture]
    return kind(**SMALL, **experts, **limit, rope_parameters=dict(rope))


@pytest.mark.parametrize("name", MODELS)
def test_log_probs_of_a_short_row_do_not_depend_on_a_long_one_beside_it(make_of, name, rounding):
    policy = make_of(config_of(name), share_prompt=False)
    both = policy.sample([SHORT, BEYOND], group_size=2, seeds=range(4))
    for rows in ([0, 1], [2, 3]):
        alone = policy(both.select(rows)).log_probs
        width = alone.shape[1]
        sampled = both.sampler_log_probs[rows, :width]
        rounding.same(
            lambda at=(rows, width): policy(both).log_probs[at[0], : at[1]], alone, sampled
        )


@pytest.mark.parametrize("share", [True, False])
def test_decoding_across_the_limit_agrees_with_the_pass_over_the_whole_row(
    make_of, share, rounding
):
    policy = make_of(config_of("longrope"), share_prompt=share, max_new_tokens=60)
    rollouts = policy.sample([SHORT], group_size=4, seeds=range(4))
    assert len(SHORT["prompt"]) < ORIGINAL < rollouts.mask.sum(dim=1).max()
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs)


def test_the_longest_possible_row_decides_and_a_note_says_so(
    make_of, transformers_log_probs, rounding
):
    policy = make_of(config_of("longrope"))
    (note,) = policy.notes
    assert f"uses those of {POSITIONS} tokens" in note
    assert f"rows up to {ORIGINAL} tokens" in note
    assert LanguageModel.examine(policy.config, [SHORT]) == [note]
    within = make_of(config_of("longrope"), max_prompt_tokens=ORIGINAL - 12)
    assert within.notes == []
    assert LanguageModel.examine(within.config, [SHORT]) == []
    rollouts = within.sample([SHORT], group_size=2, seeds=range(2))
    with torch.no_grad():
        short = within(rollouts).log_probs
        long = policy(rollouts).log_probs
        rounding.same(lambda: transformers_log_probs(within, rollouts), short)
    assert (short - long).abs().max() > 0.01


def test_frequencies_within_the_models_positions_are_left_alone(make_of):
    config = CONFIG_MAPPING["llama"](
        **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    )
    policy = make_of(config)
    assert policy.notes == []
    assert not any("forward" in vars(module) for module in policy.modules())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow(after=1)
def test_probes_refuse_a_model_whose_rows_depend_on_each_other(make_of, monkeypatch, name):
    monkeypatch.setattr(rotary, "fix", lambda *_: [])
    with pytest.raises(UserError, match=rf"nats when a row of {POSITIONS} tokens is in the same"):
        make_of(config_of(name))
    make_of(config_of(name), max_prompt_tokens=ORIGINAL - 12)
