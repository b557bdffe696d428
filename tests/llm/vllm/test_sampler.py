"""Completions by a server are those of the policy in process, with the latest weights."""

import json
import math
import string
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.llm.conftest import FORGETFUL

from groupwise import Environment, ToolCall
from groupwise.kit.errors import UserError
from groupwise.testing import check_sampler
from groupwise_llm.codec.contexts import Turn
from groupwise_llm.settings import Choice, Lora


def same_log_probs(rounding, policy, rollouts):
    """The server's log-probs are the policy's."""
    expected = rollouts.sampler_log_probs * rollouts.mask
    rounding.same(lambda: policy(rollouts).log_probs * rollouts.mask, expected)


def test_it_passes_check_sampler(make, engine, sampler, rows):
    policy = make("llama", max_new_tokens=8, temperature=0.8)
    check_sampler(sampler(policy, engine()), policy, rows, group_size=2)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stop": list(string.printable)},
        {"max_new_tokens": 3},
        {"evaluation": Choice(temperature=0.5)},
        {"keep_special_tokens": False},
    ],
)
def test_completions_end_as_in_process(make, engine, sampler, rows, settings):
    policy = make("llama", **settings)
    policy.prepare(outputs=policy.provides, facts=policy.optional_facts)
    options = {"group_size": 1, "seeds": [1, 2, 3], "purpose": "greedy"}
    # Swap rows of the head, so that the first completion's second token is a special one, and the
    # third one ends it.
    plain = make("llama")
    head = plain.model.lm_head.weight.data
    for place, token in ((1, 1), (2, 0)):
        usual = plain.sample(rows, **options).facts["completion_ids"][0][place]
        head[[token, usual]] = head[[usual, token]]
    policy.model.lm_head.weight.data.copy_(head)
    vllm = sampler(policy, engine())
    vllm.follow(policy, "policy", 0)
    expected, rollouts = policy.sample(rows, **options), vllm.sample(rows, **options)
    assert expected.truncated.tolist()[0] is False
    assert expected.facts["completion_ids"][0][-1] == 0 or settings.get("stop")

    assert rollouts.completions == expected.completions
    if not settings.get("stop"):
        kept = policy.config.keep_special_tokens
        assert ("<|turn|>" in rollouts.completions[0]) == kept
        assert "<|end|>" not in rollouts.completions[0]
    for name in ("completion_ids", "character_ends", "completion_mask", "thinking_prefix"):
        assert rollouts.facts[name] == expected.facts[name]
    for name in ("mask", "truncated", "groups"):
        assert torch.equal(getattr(rollouts, name), getattr(expected, name)), name
    assert torch.equal(rollouts.tensor("completion_ids"), expected.tensor("completion_ids"))
    assert rollouts.sampler_log_probs is None
    assert rollouts.versions.tolist() == [0, 0, 0]


def test_a_sample_ends_with_its_end_token_or_stop_string(make, engine, sampler, rows, rounding):
    policy = make("llama", stop=list("aeiou123"), max_new_tokens=20)
    vllm = sampler(policy, engine())
    vllm.follow(policy, "policy", 3)
    rollouts = vllm.sample(rows, group_size=5, seeds=range(15))
    same_log_probs(rounding, policy, rollouts)
    stops = 0
    for row, ids in enumerate(rollouts.facts["completion_ids"]):
        last = policy.tokenizer.decode(ids[-1:])
        stopped = any(stop in last for stop in policy.config.stop)
        ended = ids[-1] in policy.ends or stopped
        stops += stopped
        assert ended != bool(rollouts.truncated[row])
        assert len(ids) == int(rollouts.lengths[row])
        assert not rollouts.truncated[row] or len(ids) == 20
    assert stops
    assert set(rollouts.versions.tolist()) == {3}


def test_requests_state_every_sampling_parameter(make, engine, sampler, rows):
    """So defaults of the server, as of a generation_config.json, have no effect."""
    choice = Choice(temperature=0.6, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.1)
    policy, server = make("llama", temperature=0.7, stop=["x"], evaluation=choice), engine()
    vllm = sampler(policy, server)
    vllm.follow(policy, "policy", 0)
    requests = {}
    for purpose in ("train", "evaluate", "greedy"):
        rollouts = vllm.sample(rows[:1], group_size=2, seeds=[5, 6], purpose=purpose)
        requests[purpose] = server.calls[-1][1]["sampling_params"]
        training = purpose == "train"
        assert (rollouts.facts["sampled_mass"] == [1.0, 1.0]) == training
        assert (rollouts.sampler_log_probs is not None) == training
        if training:
            surprise = -rollouts.sampler_log_probs.sum(dim=1) / rollouts.lengths
            assert rollouts.facts["entropy"] == pytest.approx(surprise.tolist())
        else:
            assert all(map(math.isnan, rollouts.facts["entropy"]))
    common = {
        "n": 2, "seed": 5, "max_tokens": 12, "ignore_eos": True, "stop_token_ids": [0],
        "stop": ["x"], "detokenize": True, "skip_special_tokens": False,
    }  # fmt: skip
    full = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert requests["train"] == {**common, **full, "temperature": 0.7, "logprobs": 0}
    filtered = {**common, **choice.model_dump(), "logprobs": None}
    assert requests["evaluate"] == filtered
    assert requests["greedy"] == {**filtered, "temperature": 0.0}


def test_prompts_are_spread_over_servers_and_large_groups_split(
    make, engine, sampler, rows, rounding
):
    """Two servers of 2 rows and groups of 5; the rollouts stay in the order of the prompts."""
    policy, servers = make("llama", max_new_tokens=4), [engine(max_rows=2), engine(max_rows=2)]
    vllm = sampler(policy, *servers)
    vllm.follow(policy, "policy", 0)
    for server in servers:
        server.calls.clear()
    rollouts = vllm.sample(rows, group_size=5, seeds=range(15))
    same_log_probs(rounding, policy, rollouts)
    requests = [
        [body for path, body in server.calls if path == "inference/v1/generate"]
        for server in servers
    ]
    assert all(len(bodies) >= 3 for bodies in requests)
    bodies = [*requests[0], *requests[1]]
    assert sorted(body["sampling_params"]["n"] for body in bodies) == [1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert sorted(b["sampling_params"]["seed"] for b in bodies) == [0, 2, 4, 5, 7, 9, 10, 12, 14]


def test_adapters_are_sent_merged(make, engine, sampler, rows, rounding):
    policy = make("llama", lora=Lora(rank=2, options={"use_dora": True}))
    generator = torch.Generator().manual_seed(3)
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    for p in trained.values():
        p.data += torch.randn(p.shape, generator=generator) * 0.2
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    vllm = sampler(policy, engine())
    vllm.follow(policy, "policy", 0)
    same_log_probs(rounding, policy, vllm.sample(rows, group_size=2, seeds=range(6)))
    after = dict(policy.named_parameters())
    assert all(torch.equal(p, before[name]) for name, p in after.items())


def test_servers_sleep_while_nothing_is_drawn(make, engine, sampler, rows):
    policy, server = make("llama", max_new_tokens=2), engine()
    vllm = sampler(policy, server, sleep=True)
    vllm.follow(policy, "policy", 0)
    vllm.sample(rows, group_size=1, seeds=range(3))
    calls = [path for path in server.paths() if path != "weight_info"]
    load = [
        *("pause", "update_weight_version", "collective_rpc", "reset_encoder_cache"),
        *("reset_prefix_cache", "update_weight_version", "resume"),
    ]
    assert calls == [
        "server_info", "wake_up", *load,
        *["inference/v1/generate"] * 2, "wake_up", *["inference/v1/generate"] * 3, "sleep",
    ]  # fmt: skip
    # As a run samples, part by part.
    server.calls.clear()
    vllm.follow(policy, "policy", 1)
    parts = vllm.stream(rows, group_size=1, seeds=range(3), purpose="train", most=1)
    assert len(list(parts)) == 3
    assert server.paths()[-1] == "sleep"
    assert server.paths().count("wake_up") == 2
    with ThreadPoolExecutor(1) as thread:
        ahead = thread.submit(vllm.sample, rows, group_size=1, seeds=range(3))
        with pytest.raises(UserError, match=r"sampler.sleep: true and train.ahead: servers"):
            ahead.result()


def test_a_run(run, engine, tmp_path, rounding):
    server = engine()
    result = run(server)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "mismatch/mean" in line]
    assert len(steps) == 3
    bound = rounding.ratio_bound(result.policy, {"prompt": "word 1"})
    assert all(line["mismatch/max"] <= bound for line in steps)
    # A weight is a product of up to 6 ratios, and logged at six digits.
    assert all(abs(line["importance"] - 1) <= math.expm1(6 * bound) + 1e-5 for line in steps)
    # Weights are sent before each step and before the last evaluation.
    assert server.paths().count("collective_rpc") == 4
    assert "Mismatch" in (tmp_path / "run/report.html").read_text()
    assert not list(Path(tmp_path).glob("groupwise-*"))  # no weights remain


def test_turns_by_a_server_are_those_in_process(make, engine, sampler, rows, rounding):
    policy = make("llama", max_new_tokens=60)
    vllm = sampler(policy, server := engine())
    vllm.follow(policy, "policy", 2)
    chat = [{"prompt": [{"role": "user", "content": row["prompt"][:9]}]} for row in rows]

    def play(own, **options):
        contexts = own.encode(chat)
        with own.session():
            for turn in range(3):
                limits = [5 + turn, 3, 8]
                drawn = own.draw(contexts, seeds=range(3), limits=limits, **options)
                contexts = [c.with_turn(t) for c, t in zip(contexts, drawn, strict=True)]
                if turn < 2:
                    reply = [{"role": "tool", "content": "4" * turn}]
                    contexts = [own.extend(context, reply) for context in contexts]
        return own.assemble(chat, contexts)

    expected, rollouts = [play(own, purpose="greedy") for own in (policy, vllm)]
    assert rollouts.completions == expected.completions
    for name in ("completion_ids", "thinking_prefix"):
        assert rollouts.facts[name] == expected.facts[name]
    for name in ("mask", "truncated", "groups"):
        assert torch.equal(getattr(rollouts, name), getattr(expected, name)), name
    assert rollouts.sampler_log_probs is None
    assert rollouts.versions.tolist() == [2, 2, 2]
    trained = play(vllm, stop=["a", "e"])
    same_log_probs(rounding, policy, trained)
    requests = [body for path, body in server.calls if path == "inference/v1/generate"][-3:]
    sent = {own["sampling_params"]["max_tokens"] for own in requests}
    assert sent == {7, 3, 8}
    for own in requests:
        assert own["sampling_params"]["n"] == 1
        assert own["sampling_params"]["stop"] == ["a", "e"]
        assert own["sampling_params"]["detokenize"]
    whole = [
        [*prompt.tolist(), *ids]
        for prompt, ids in zip(
            trained.trajectory["prompt_ids"], trained.facts["completion_ids"], strict=True
        )
    ]
    for own in requests:
        assert any(ids[: len(own["token_ids"])] == own["token_ids"] for ids in whole)


def test_calls_of_tools_are_read_from_a_servers_turns(make, engine, sampler):
    tags = {"format": "tags", "begin": "<call>", "end": "</call>"}
    policy = make("llama", model={"template": FORGETFUL}, tool_calls=tags)
    vllm = sampler(policy, engine())
    (context,) = vllm.encode([{"prompt": [{"role": "user", "content": "1+1"}]}])
    text = 'So <call>{"name": "add"}</call>'
    ids = tuple(policy.tokenizer(text)["input_ids"])
    context = vllm.with_turn(context, Turn(ids=ids, text=text, ended="stop"))
    assert vllm.tool_calls(context) == ((ToolCall("add"),), "So")
    (message,) = context.completion
    assert message["tool_calls"] == [ToolCall("add").chat]
    assert vllm.turn_notes() == policy.turn_notes() != []


def test_servers_stay_awake_for_a_session(make, engine, sampler, rows):
    policy, server = make("llama", max_new_tokens=9), engine()
    vllm = sampler(policy, server, sleep=True)
    vllm.follow(policy, "policy", 0)
    server.calls.clear()
    contexts = vllm.encode(rows)
    with vllm.session():
        for _ in range(2):
            turns = vllm.draw(contexts, seeds=range(3), limits=[2] * 3)
            contexts = [c.with_turn(t) for c, t in zip(contexts, turns, strict=True)]
    assert server.paths().count("wake_up") == server.paths().count("sleep") == 1
    vllm.draw(contexts, seeds=range(3), limits=[2] * 3)
    assert server.paths().count("wake_up") == server.paths().count("sleep") == 2


def test_the_turns_of_an_episode_have_one_server(make, engine, sampler):
    policy = make("llama", max_new_tokens=9)
    servers = engine(), engine()
    vllm = sampler(policy, *servers)
    vllm.follow(policy, "policy", 0)
    rows = [{"prompt": f"prompt {number}"} for number in range(8)]
    for server in servers:
        server.calls.clear()
    contexts = vllm.encode(rows)
    with vllm.session():
        for _ in range(2):
            turns = vllm.draw(contexts, seeds=range(8), limits=[2] * 8)
            contexts = [c.with_turn(t) for c, t in zip(contexts, turns, strict=True)]
    prompts = [
        [body["token_ids"][:8] for path, body in server.calls if path == "inference/v1/generate"]
        for server in servers
    ]
    assert all(prompts)
    first, second = [{tuple(ids) for ids in own} for own in prompts]
    assert not first & second


class Three(Environment):
    """Three turns with a tool's answer after each."""

    async def play(self, row, players):
        (player,) = players.values()
        text = row["prompt"]
        for number in range(3):
            text += (await player(text, limit=3)).text + f" {number} "
        return {"ended": "turns"}


@pytest.mark.slow
def test_each_episode_is_drawn_without_waiting_for_others(run, engine, tmp_path, rounding):
    """The first turn of a session is outstanding until another context has its third turn."""
    server = engine()
    words = [f"word {number}" for number in (*range(10, 12), *range(10))]
    prompts = [server.tokenizer(word)["input_ids"] for word in words]
    turns, waited, changed = Counter(), [], threading.Condition()

    def others_are_done(slow):
        return any(count == 3 for prompt, count in turns.items() if prompt != slow)

    def fault(body):
        ids = body["token_ids"]
        prompt = next((n for n, own in enumerate(prompts) if ids[: len(own)] == own), None)
        if prompt is None:
            return  # the probe of a server's weights
        with changed:
            turns[prompt] += 1
            changed.notify_all()
            if not waited:
                waited.append(False)
                waited[0] = changed.wait_for(lambda: others_are_done(prompt), 30)

    server.faults["inference/v1/generate"] = fault
    policy = {
        "name": "language_model",
        "model": str(server.folder),
        "max_new_tokens": 60,
    }
    evaluation = {"prompts": 2, "samples": 1, "greedy": False}
    result = run(server, environment=Three(), policy=policy, evaluation=evaluation)
    assert waited == [True]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "mismatch/mean" in line]
    assert len(steps) == 3
    bound = rounding.ratio_bound(result.policy, {"prompt": "word 1"})
    for line in steps:
        assert line["mismatch/max"] <= bound
        assert line["ended/length"] == line["truncated"]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("settings", "overlaps"),
    [
        ({}, True),
        ({"train.ahead": 0}, False),
        ({"sampler.sleep": True}, False),
        ({"algorithm": "gspo"}, False),
        ({"algorithm.importance": "token"}, False),
    ],
)
def test_an_engine_samples_during_updates_by_default(run, engine, capsys, settings, overlaps):
    options = {"evaluation.prompts": 0, "evaluation.every": 0, "prompts.held_out": 0.0}
    result = run(engine(), **{"train.ahead": None, **options, **settings}, quiet=False)
    shown = " ".join(capsys.readouterr().err.split())
    assert ("the engine samples the next step during each update" in shown) == overlaps
    lines = [
        json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()
    ]
    steps = [line for line in lines if "mismatch/max" in line]
    assert [line.get("stale/max", 0.0) > 1e-4 for line in steps] == [False, overlaps, overlaps]
    assert all(line["mismatch/max"] < 1e-4 for line in steps)  # within one version
    assert ("ahead: 1" in (result.folder / "config.yaml").read_text()) == overlaps


@pytest.mark.parametrize("ahead", [0, None])
@pytest.mark.slow(after=1)
def test_a_resumed_run_overlaps_as_it_began(run, engine, ahead):
    """Also one that is resumed with its first configuration, where `train.ahead` is unset."""
    server, options = engine(), {"evaluation.prompts": 0, "prompts.held_out": 0.0}
    began = run(server, **{"train.ahead": ahead, **options})
    before = (began.folder / "config.yaml").read_text()
    run(server, **{"train.ahead": None, "train.steps": 4, **options}, resume=True)
    assert (began.folder / "config.yaml").read_text() == before.replace("steps: 3", "steps: 4")
    assert f"ahead: {0 if ahead == 0 else 1}" in before
