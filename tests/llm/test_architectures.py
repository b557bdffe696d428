"""Every architecture is sampled and trained by the same distribution, whatever its cache."""

from pathlib import Path
from runpy import run_path

import pytest
import torch
from transformers import CONFIG_MAPPING

TABLES = run_path(str(Path(__file__).with_name("architectures.py")))
ATTENTION = TABLES["ATTENTION"]
TABLE = ATTENTION | TABLES["RECURRENT"]
ROWS = [{"prompt": text} for text in ("a longer prompt: 12+34=", "Hi", "7-5", "9*5")]
OWN_HEADS = {"gemma2", "cohere2", "recurrent_gemma"}


@pytest.fixture
def policy(request, make_of):
    config = CONFIG_MAPPING[request.param](**TABLE[request.param])
    return make_of(config, temperature=0.8, max_new_tokens=10)


@pytest.mark.parametrize("policy", TABLE, indirect=True, ids=str)
@pytest.mark.slow(after=8)
def test_sampled_and_trained_log_probs_are_those_of_single_rows(
    policy, transformers_log_probs, request, rounding
):
    name = request.node.callspec.params["policy"]
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    rollouts = policy.train().sample(ROWS, group_size=2, seeds=range(8))
    trained = policy(rollouts).log_probs
    rounding.same(
        lambda: transformers_log_probs(policy, rollouts),
        *(rollouts.sampler_log_probs, trained * rollouts.mask),
    )
    (trained * rollouts.mask).sum().backward()
    assert policy.ability.numerics.plain_head == (name not in OWN_HEADS)
    if name in ATTENTION:
        assert policy.ability.shared_training
        assert policy.ability.decoding == type(policy.ability.decoding)()
    # RWKV rescales its weights at its first pass in eval mode by default.
    for key, value in policy.state_dict().items():
        assert torch.equal(value, before[key]), key
