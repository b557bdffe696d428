"""Sampling, log-probs and gradients on a CUDA device, in float32 and bf16."""

import pytest
import torch

from groupwise_llm.decoding.stepping import Fixed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PRECISIONS = {"float32": 2e-4, "bf16": 0.1}


@pytest.fixture(params=PRECISIONS)
def precision(request):
    return request.param


@pytest.fixture
def policy(make, precision):
    return make("llama", device="cuda", precision=precision, max_new_tokens=24)


@pytest.fixture
def rollouts(policy, rows):
    return policy.sample(rows, group_size=8, seeds=range(24))


def test_sampling_on_the_device(policy, rollouts, rows):
    assert rollouts.mask.device.type == rollouts.sampler_log_probs.device.type == "cuda"
    again = policy.sample(rows, group_size=8, seeds=range(24))
    assert again.facts["completion_ids"] == rollouts.facts["completion_ids"]


def test_greedy_is_generate(make, rows):
    policy = make("llama", device="cuda")
    rollouts = policy.sample(rows, group_size=1, seeds=range(3), purpose="greedy")
    for row, tokens in zip(rows, rollouts.facts["completion_ids"], strict=True):
        prompt = policy.tokenizer(row["prompt"], return_tensors="pt").to("cuda")
        output = policy.model.generate(**prompt, do_sample=False, max_new_tokens=12, pad_token_id=0)
        assert tokens == output[0, prompt["input_ids"].shape[1] :].tolist()


def gap(policy, rollouts):
    """The largest difference of the log-probs of training and of sampling."""
    return (policy(rollouts).log_probs - rollouts.sampler_log_probs)[rollouts.mask].abs().max()


FILTERS = {"top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2, "temperature": 0.8}


@pytest.fixture
def replays(monkeypatch):
    """A list that grows by each replay of a graph; rooms grow by few tokens."""
    monkeypatch.setattr(Fixed, "LEAST", 16)
    calls, original = [], torch.cuda.CUDAGraph.replay

    def replay(graph):
        calls.append(graph)
        original(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay)
    return calls


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("settings", [{}, FILTERS, {"stop": ["e"]}, {"lora": {"rank": 4}}], ids=str)
def test_graphs_sample_what_kernels_launched_one_by_one_do(
    make, rows, precision, replays, *, settings, compiled
):
    settings = {"precision": precision, "max_new_tokens": 64, "cache_tokens": 1500, **settings}
    model = {"eos_token_id": list(range(12))}
    policy, eager = [
        make("llama", model, device="cuda", cuda_graphs=graphs, compile=compiled, **settings)
        for graphs in (True, False)
    ]
    assert policy.ability.decoding.graphs, policy.notes
    assert policy.ability.decoding.fused == compiled, policy.notes
    for _ in range(2):
        del replays[:]
        rollouts = policy.sample(rows, group_size=8, seeds=range(24))
        assert len(replays) > 20
        del replays[:]
        expected = eager.sample(rows, group_size=8, seeds=range(24))
        assert not replays
        if precision == "float32":
            assert gap(policy, rollouts) < PRECISIONS[precision]
            assert rollouts.facts["completion_ids"] == expected.facts["completion_ids"]
        else:  # bf16 rounds merged weights, too, with graphs and without
            assert gap(policy, rollouts) < max(PRECISIONS[precision], 1.5 * gap(eager, expected))
        with torch.no_grad():  # then once more, with other weights in the same places
            for weight in (*policy.parameters(), *eager.parameters()):
                if weight.requires_grad:
                    weight.add_(0.02)


def test_graphs_go_on_from_a_cache(make, rows, replays):
    policy = make("llama", device="cuda", max_new_tokens=64)
    with policy.session():
        contexts = policy.encode(rows)
        for turn in range(3):
            turns = policy.draw(contexts, seeds=range(3), limits=[20, 17, 14])
            contexts = [own.with_turn(one) for own, one in zip(contexts, turns, strict=True)]
            assert len(replays) > 10 * (turn + 1)
    assert gap(policy, policy.assemble(rows, contexts)) < PRECISIONS["float32"]


def test_log_probs_are_those_of_transformers_forward(
    policy, rollouts, transformers_log_probs, precision
):
    numerics = policy.ability.numerics
    with torch.no_grad(), policy.causal.copies.swapped_in(numerics):  # both in bf16
        ours = policy(rollouts).log_probs.cpu()
        gap = (ours - transformers_log_probs(policy, rollouts))[rollouts.mask.cpu()].abs().max()
    assert gap < PRECISIONS[precision]


def test_the_ratio_is_one(policy, rollouts, precision):
    assert gap(policy, rollouts) < PRECISIONS[precision]


def test_shared_and_plain_gradients_agree(policy, rollouts, allow, precision):
    gradients = []
    for training in (policy.ability.training, "plain"):
        allow(policy, training=training)
        policy.zero_grad(set_to_none=True)
        (policy(rollouts).log_probs * rollouts.mask).sum().backward()
        gradients.append(torch.cat([p.grad.flatten().double() for p in policy.parameters()]))
    gap = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert gap < (1e-4 if precision == "float32" else 0.05)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_step_makes_the_first_completion_likelier(make, rows, precision, lora):
    policy = make("llama", device="cuda", precision=precision, lora=lora).train()
    rollouts = policy.sample(rows, group_size=4, seeds=range(12))
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-3)
    before = policy(rollouts).log_probs[0].sum()
    for part, decisions in policy.microbatches(rollouts, 64, cut_decisions=True):
        piece = rollouts.select(part)
        log_probs = policy(piece, decisions).log_probs
        sign = (part == 0).to(log_probs).unsqueeze(1)
        (-(sign * log_probs * piece.mask[:, decisions])).sum().backward()
    optimizer.step()
    assert policy(rollouts).log_probs[0].sum() > before
