"""Servers get a policy's adapters alone, and sample as the policy does."""

import json

import pytest
import torch
from safetensors import safe_open

from groupwise.kit.errors import UserError
from groupwise.testing import check_sampler
from groupwise_llm.settings import Lora
from groupwise_llm.vllm.sampler import VLLM

LORA = Lora(rank=4, targets=["q_proj", "down_proj"])


@pytest.fixture
def policy(make):
    return make("llama", lora=LORA, max_new_tokens=6)


def change(policy, seed):
    """Adds numbers to the adapters that change every log-prob."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.3)


def same_log_probs(rounding, policy, rollouts):
    """The server's log-probs are the policy's."""
    expected = rollouts.sampler_log_probs * rollouts.mask
    rounding.same(lambda: policy(rollouts).log_probs * rollouts.mask, expected)


def largest_gap(policy, rollouts):
    with torch.no_grad():
        gaps = policy(rollouts).log_probs - rollouts.sampler_log_probs
    return float(gaps[rollouts.mask].abs().max())


@pytest.mark.slow
def test_only_adapters_are_sent_and_sample_as_the_policy(policy, engine, sampler, rows, rounding):
    server = engine(lora_rank=8)
    vllm = sampler(policy, server)
    check_sampler(vllm, policy, rows, group_size=2)
    for version in range(3):
        change(policy, version)
        vllm.follow(policy, "policy", version)
        rollouts = vllm.sample(rows, group_size=2, seeds=range(6))
        same_log_probs(rounding, policy, rollouts)
        assert set(rollouts.versions.tolist()) == {version}
        # Each version has a name of its own, and those with which no request runs are gone.
        assert [*server.adapters][-1] == server.tag == vllm.tag
        assert len(server.adapters) <= 2
    assert "collective_rpc" not in server.paths()
    home = vllm.exchange.transfer.home
    assert not [*home.glob("*.safetensors")]
    assert {path.name for path in home.iterdir() if path.is_dir()} == {*server.adapters}
    with safe_open(home / vllm.tag / "adapter_model.safetensors", framework="pt") as file:
        sent = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert sent == sum(p.numel() for p in policy.parameters() if p.requires_grad)


def test_adapters_of_other_ranks_and_scales(make, engine, sampler, rows, rounding):
    options = {"rank_pattern": {"q_proj": 6}, "alpha_pattern": {"q_proj": 3}, "use_rslora": True}
    policy = make("llama", lora=LORA.model_copy(update={"options": options}))
    change(policy, 0)
    with pytest.raises(UserError, match=r"adapters up to rank 4: start .* --max-lora-rank 8"):
        sampler(policy, engine(lora_rank=4), adapters=True)
    vllm = sampler(policy, engine(lora_rank=8), adapters=True)
    vllm.follow(policy, "policy", 0)
    same_log_probs(rounding, policy, vllm.sample(rows, group_size=1, seeds=range(3)))


def test_adapters_that_are_switched_off_add_nothing(policy, engine, sampler, rows, rounding):
    """As of a reference without a copy."""
    change(policy, 0)
    vllm = sampler(policy, engine(lora_rank=8))
    with policy.model.disable_adapter():
        vllm.follow(policy, "reference", 0)
        rollouts = vllm.sample(rows, group_size=1, seeds=range(3))
        same_log_probs(rounding, policy, rollouts)
    assert largest_gap(policy, rollouts) > 0.01


def test_a_server_that_restarts_gets_the_adapters_again(policy, engine, sampler, rows, rounding):
    change(policy, 0)
    server = engine(lora_rank=8)
    vllm = sampler(policy, server)
    vllm.follow(policy, "policy", 0)

    def restart(_):
        server.faults.clear()
        server.tag, server.adapters = "default", {}

    server.faults["inference/v1/generate"] = restart
    rollouts = vllm.sample(rows, group_size=1, seeds=range(3))
    same_log_probs(rounding, policy, rollouts)
    assert server.paths().count("v1/load_lora_adapter") == 2


def test_a_server_that_keeps_losing_the_adapters_is_an_error(policy, engine, sampler, rows):
    server = engine(lora_rank=8)
    vllm = sampler(policy, server)
    vllm.follow(policy, "policy", 0)
    server.faults["inference/v1/generate"] = lambda _: server.adapters.clear()
    with pytest.raises(UserError, match="draws with other weights than those that it was sent"):
        vllm.sample(rows, group_size=1, seeds=range(3))


LIMITS = [
    ({}, {}, "takes none: start it with --enable-lora --max-lora-rank 8"),
    (
        {},
        {"lora_rank": 8, "lora_updates": False},
        "takes none later: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
    ),
    (
        {"options": {"modules_to_save": ["lm_head"]}},
        {"lora_rank": 8},
        "vLLM does not apply .*modules_to_save.*, which is trained, as an adapter",
    ),
    (
        {"options": {"init_lora_weights": "pissa"}},
        {"lora_rank": 8},
        "vLLM does not apply policy.lora.options.init_lora_weights: pissa as an adapter",
    ),
]


@pytest.fixture(params=LIMITS, ids=lambda limit: limit[-1][:20])
def limited(request, make, engine):
    """A policy and a server that cannot get its adapters alone, and why."""
    lora, facts, reason = request.param
    return make("llama", lora=LORA.model_copy(update=lora)), engine(**facts), reason


def test_where_adapters_cannot_be_sent_alone_the_whole_model_is(
    limited, sampler, rows, capsys, rounding
):
    policy, server, reason = limited
    with pytest.raises(UserError, match=f"sampler.adapters: true, but .*{reason}"):
        sampler(policy, server, adapters=True)
    change(policy, 0)
    vllm = sampler(policy, server)
    assert "whole model with adapters merged, since" in capsys.readouterr().err
    vllm.follow(policy, "policy", 0)
    same_log_probs(rounding, policy, vllm.sample(rows, group_size=1, seeds=range(3)))
    assert "v1/load_lora_adapter" not in server.paths()


def test_adapters_are_for_the_base_model_that_the_server_started_with(policy, engine, sampler):
    server = engine(lora_rank=8)
    sampler(policy, server, adapters=False).follow(policy, "policy", 0)
    with pytest.raises(UserError, match="has weights of another run: restart it"):
        sampler(policy, server, adapters=True)
    server.tag = "default"  # as after a restart
    sampler(policy, server).follow(policy, "policy", 0)
    sampler(policy, server, adapters=True)  # another run


def test_on_a_cpu_tied_embeddings_allow_adapters_alone(make, engine, sampler):
    """vLLM there keeps the old output embedding when it loads a whole model."""
    policy = make("qwen2", lora=LORA)
    server = engine("qwen2", device="cpu", chunked_prefill=False, lora_rank=8)
    sampler(policy, server, adapters=True)
    with pytest.raises(UserError, match="whose input and output embeddings are tied"):
        sampler(policy, server, adapters=False)


def test_merged_weights_can_be_chosen(policy, engine, sampler, capsys):
    server = engine(lora_rank=8)
    sampler(policy, server, adapters=False).follow(policy, "policy", 0)
    assert "v1/load_lora_adapter" not in server.paths()
    assert not capsys.readouterr().err
    with pytest.raises(ValueError, match=r"transfer: nccl: vLLM reads adapters from files"):
        VLLM.Config(servers=["http://a"], adapters=True, transfer="nccl")


def test_a_server_elsewhere_needs_a_shared_folder(policy, engine, sampler, monkeypatch):
    monkeypatch.setattr("groupwise_llm.vllm.adapters.HERE", set())
    with pytest.raises(UserError, match=r"is on another machine: set sampler\.folder"):
        sampler(policy, engine(lora_rank=8), adapters=True, folder=None)


def test_adapters_that_a_server_refuses_point_to_merged_weights(policy, engine, sampler):
    server = engine(lora_rank=8)
    vllm = sampler(policy, server)
    error = {"error": {"message": "expected target modules in {'qkv_proj'}"}}
    server.faults["v1/load_lora_adapter"] = lambda _: (500, error)
    with pytest.raises(UserError, match=r"expected target modules .*sampler\.adapters: false"):
        vllm.follow(policy, "policy", 0)


def test_sleeping_servers_keep_the_base_model(policy, engine, sampler, rows):
    """Level 1 moves it to the host's memory; level 2 would drop what is not sent again."""
    server = engine(lora_rank=8)
    vllm = sampler(policy, server, sleep=True)
    vllm.follow(policy, "policy", 0)
    vllm.sample(rows, group_size=1, seeds=range(3))
    assert server.queries["sleep"] == {"level": "1"}
    assert [path for path in server.paths() if path in ("sleep", "wake_up", "collective_rpc")] == [
        *("wake_up", "wake_up", "sleep")
    ]


def test_a_run_with_adapters(run, engine, tmp_path, rounding):
    server = engine(lora_rank=8)
    result = run(server, **{"policy.lora": {"rank": 4}})
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    mismatches = [line["mismatch/max"] for line in lines if "mismatch/max" in line]
    assert len(mismatches) == 3
    assert max(mismatches) <= rounding.ratio_bound(result.policy, {"prompt": "word 1"})
    assert "collective_rpc" not in server.paths()
