"""A server that has other weights than those it was sent is noticed at the next transfer."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from groupwise.kit.errors import UserError
from groupwise_llm.settings import Lora

MESSAGE = r"says that it has loaded the new weights, but computes with others: .* the slope is "


def move(policy, size, seed=0):
    """Change every trained weight by about this share of its size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(size * noise * weight.abs().mean().clamp(min=1e-3))


def load_nothing(server):
    server.load = lambda folder: None


def load_a_part(server):
    """Without the embeddings of tokens."""

    def load(folder):
        own = server.base.state_dict()
        for file in Path(folder).glob("*.safetensors"):
            for name, tensor in load_file(file).items():
                if "embed_tokens" not in name:
                    own[name].copy_(tensor)

    server.load = load


def answer_from_the_base(server):
    """Although adapters are loaded."""
    server.logits = lambda ids, inputs: server.base(input_ids=torch.tensor([ids])).logits[0]


@pytest.mark.parametrize(
    ("fault", "size"),
    [(load_nothing, 1e-4), (load_a_part, 1e-4), (load_a_part, 1e-2), (answer_from_the_base, 1e-2)],
)
def test_weights_that_do_not_arrive_are_noticed(pair, fault, size):
    adapters = fault is answer_from_the_base
    lora = {"lora": Lora(rank=4)} if adapters else {}
    facts = {"lora_rank": 8} if adapters else {}
    policy, server, vllm = pair({"max_new_tokens": 16, **lora}, facts)
    fault(server)
    move(policy, size)
    with pytest.raises(UserError, match=MESSAGE):
        vllm.follow(policy, "policy", 1)


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
def test_weights_that_arrive_are_not_suspected(pair, lora):
    """Nor unchanged ones, as in a warm-up or a step without signal, nor changes of a few bits."""
    policy, _, vllm = pair({"max_new_tokens": 16, "lora": lora}, {"lora_rank": lora and 8})
    sizes = [0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.0]
    for version, size in enumerate(sizes, start=1):
        move(policy, size, seed=version)
        vllm.follow(policy, "policy", version)
        assert vllm.mismatch(version)["max"] < 1e-4
    assert vllm.mismatch(99) == {}


def test_what_one_step_hides_in_rounding_shows_after_several(pair):
    policy, server, vllm = pair({"max_new_tokens": 16})
    load_nothing(server)
    vllm.follow(policy, "policy", 1)
    move(policy, 1e-8)
    vllm.follow(policy, "policy", 2)
    moved = 0
    with pytest.raises(UserError, match=MESSAGE):  # noqa: PT012
        while moved < 20:
            moved += 1
            move(policy, 3e-7)  # always in the same direction
            vllm.follow(policy, "policy", 2 + moved)
    assert moved > 1


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"dtype": "torch.bfloat16"}, r"computes in bfloat16, .* in float32 .* --dtype float32"),
        ({"quantization": "fp8"}, r"quantises the weights .* \(fp8\), .* without --quantization"),
        ({"cache_dtype": "fp8_e4m3"}, r"keeps its cache in fp8_e4m3, .* --kv-cache-dtype auto"),
        ({"speculative": {"method": "ngram"}}, r"decodes speculatively, .* --speculative-config"),
    ],
)
def test_a_server_with_other_numbers_is_refused(make, engine, sampler, facts, message):
    with pytest.raises(UserError, match=message):
        sampler(make("llama"), engine(**facts))


def test_a_server_that_scores_no_prompt_is_refused(make, engine, sampler):
    policy, server = make("llama"), engine()
    server.scores = lambda prompt, inputs: None
    with pytest.raises(UserError, match=r"does not state the log-probs of a prompt"):
        sampler(policy, server).follow(policy, "policy", 0)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [1, 0])
def test_a_healthy_run_has_no_alarm(run, engine, ahead):
    """Also with rollouts of older weights, whose own movement is no mismatch."""
    more = {"train.ahead": ahead, "train.warmup_steps": 2, "train.steps": 30}
    result = run(engine(), **more, **{"evaluation.every": 0})
    warnings = json.loads((result.folder / "result.json").read_text())["warnings"]
    assert not [text for text in warnings if "entropy has left" not in text]  # it learns fast
    lines = [
        json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()
    ]
    steps = [line for line in lines if "mismatch/mean" in line]
    assert steps
    assert max(line["mismatch/mean"] for line in steps) < 1e-5
    assert any(line.get("stale/mean", 0) > 1e-4 for line in steps) == bool(ahead)
