"""Servers that are absent, die, restart, are slow, answer wrongly or have other options."""

import json
import threading
from pathlib import Path

import pytest
import torch

from groupwise.kit.errors import UserError
from groupwise_llm.vllm.sampler import VLLM

GENERATE = "inference/v1/generate"


def without(name):
    return lambda choice: {key: value for key, value in choice.items() if key != name}


def with_values(**values):
    return lambda choice: {**choice, **values}


def without_logprobs(choice):
    content = [{"token_id": token} for token in choice["token_ids"]]
    return {**choice, "logprobs": {"content": content}}


def one_logprob_less(choice):
    return {**choice, "logprobs": {"content": choice["logprobs"]["content"][:-1]}}


# ---- errors at the start


@pytest.mark.parametrize(
    ("facts", "settings", "message"),
    [
        (
            {"logprobs_mode": "raw_logprobs"},
            {},
            "raw_logprobs, .* --logprobs-mode processed_logprobs",
        ),
        ({"max_tokens": 12}, {}, r"takes 12 tokens .*max_new_tokens is 12; .*--max-model-len"),
        ({"sleep_mode": False}, {"sleep": True}, "cannot sleep .*--enable-sleep-mode"),
        ({"device": "cpu"}, {}, "with chunked prefill, .*--no-enable-chunked-prefill"),
        ({}, {"transfer": "nccl"}, r"by NCCL .*--weight-transfer-config '.*nccl.*transfer: files"),
    ],
)
def test_a_server_with_other_options_is_refused(pair, facts, settings, message):
    with pytest.raises(UserError, match=f"server at http://127.0.0.1:[0-9]+ .*{message}"):
        pair(facts=facts, **settings)


def test_tied_embeddings_on_a_cpu_server_are_refused(make, engine, sampler):
    with pytest.raises(UserError, match=r"keeps the old output embedding .*untie them"):
        sampler(make("qwen2"), engine("qwen2", device="cpu", chunked_prefill=False))
    sampler(make("qwen2"), engine("qwen2"))  # on a GPU tied embeddings work


def test_a_server_with_other_rotary_factors_than_the_policy_is_refused(make, engine, sampler):
    """vLLM chooses LongRoPE's factors by the most tokens that it takes, for all rows."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 64,
    }
    model = {"rope_parameters": rope}
    for prompt, tokens in [(None, 128), (None, 100), (20, 64)]:
        sampler(
            make(model=model, architecture="llama", max_prompt_tokens=prompt),
            engine(model=model, max_tokens=tokens),
        )
    for prompt, tokens, most in [(None, 64, 128), (20, 65, 32)]:
        policy = make(model=model, architecture="llama", max_prompt_tokens=prompt)
        with pytest.raises(UserError, match=rf"{tokens} tokens .* --max-model-len {most}, or set"):
            sampler(policy, engine(model=model, max_tokens=tokens))


def test_errors_name_the_option_to_set(pair, sampler):
    policy, server, _ = pair({"max_new_tokens": 2})
    for path, answer, message in [
        ("server_info", (404, {"detail": "Not Found"}), "VLLM_SERVER_DEV_MODE=1, and at least"),
        ("server_info", (401, {"error": "Unauthorized"}), "Unauthorized; set sampler.api_key"),
        (
            "server_info",
            (200, {"vllm_config": "text"}),
            "does not describe its configuration as vLLM",
        ),
        (GENERATE, (403, {"error": {"message": "disabled"}}), "disabled; .*--enable-scale-out"),
        (GENERATE, (200, {"text": "hello"}), "without completions"),
        ("update_weight_version", (404, {"detail": "Not Found"}), "at least vLLM 0.32"),
        ("reset_prefix_cache", (200, {"success": False}), "could not drop its cache"),
        ("collective_rpc", (500, {"error": {"message": "no"}}), "cannot load .*: no. Was it"),
    ]:
        server.faults = {path: lambda _, answer=answer: answer}
        with pytest.raises(UserError, match=message):
            sampler(policy, server).follow(policy, "policy", 1)


def test_a_server_of_another_model_is_refused(make, engine, sampler):
    policy = make("llama")
    for model, message in (
        ({"hidden_size": 64}, "cannot load the policy's weights: .*Was it started with"),
        ({"num_hidden_layers": 1}, "cannot load the policy's weights"),
        ({"num_hidden_layers": 3}, "nats on average: it runs another model"),
        ({"rms_norm_eps": 0.5, "vocab_size": 300}, "cannot load the policy's weights"),
    ):
        with pytest.raises(UserError, match=message):
            sampler(policy, engine(model=model)).follow(policy, "policy", 0)


def test_prompts_longer_than_the_server_allows_are_refused(pair, rows):
    _, _, vllm = pair(facts={"max_tokens": 30})
    with pytest.raises(UserError, match=r"prompt of 23 tokens .* more than the 30 tokens"):
        vllm.sample(rows, group_size=2, seeds=range(6))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set either servers .* or start"),
        ({"servers": ["http://one:1"], "start": {}}, "set either servers .* or start"),
        ({"servers": ["one:1"]}, "expected addresses such as http"),
        ({"servers": ["http://one:1", "http://one:1/"]}, "the same server is listed twice"),
        (
            {"servers": ["http://one:1"], "sleep": True, "transfer": "nccl"},
            "cannot connect two processes on one GPU",
        ),
    ],
)
def test_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        VLLM.Config(**settings)


# ---- wrong responses


def test_wrong_responses_are_refused(pair, rows):
    _, server, vllm = pair({"max_new_tokens": 4})
    for spoil, message in [
        (with_values(logprobs=None), "states no log-probs .*--logprobs-mode processed_logprobs"),
        (one_logprob_less, "sampled 4 tokens and states 3 log-probs"),
        (
            with_values(weight_versions=None),
            "does not state a completion's weight version; vLLM 0.32 does",
        ),
        (with_values(weight_versions=[{"start": 0}]), "in an unknown format; it needs vLLM 0.32"),
        (with_values(logprobs={"content": None}), "in an unknown format; it needs vLLM 0.32"),
        (without_logprobs, "in an unknown format; it needs vLLM 0.32"),
        (without("token_ids"), "answers without token_ids"),
        (with_values(token_ids=[]), "sampled 0 tokens, expected 1 to 4"),
        (with_values(token_ids=[5] * 5), "sampled 5 tokens, expected 1 to 4"),
        (
            with_values(token_ids=[5, 5, 5, 900]),
            "sampled token 900, and the policy's model has 258",
        ),
        (with_values(token_ids=[5], finish_reason="length"), "after 1 of 4 tokens, with neither"),
        (with_values(finish_reason="abort"), "reason: abort"),
    ]:
        server.spoil = spoil
        with pytest.raises(UserError, match=message):
            vllm.sample(rows[:1], group_size=2, seeds=[0, 1])


def test_missing_completions_are_an_error(pair, rows):
    _, server, vllm = pair()
    server.faults[GENERATE] = lambda _: (200, {"choices": []})
    with pytest.raises(UserError, match="0 completions, expected 2"):
        vllm.sample(rows, group_size=2, seeds=range(6))


# ---- other weights


def test_a_server_that_restarted_gets_the_weights_again(pair, rows, rounding):
    """Also in the middle of a batch, whose completions by other weights are sampled again."""
    policy, server, vllm = pair(patience=5.0)
    with torch.no_grad():
        policy.model.lm_head.weight.copy_(policy.model.lm_head.weight.flip(0))
    vllm.follow(policy, "policy", 1)
    calls = []

    def restart(_):
        calls.append(threading.get_ident())
        if len(calls) == 2:
            server.stop()
            server.start()
            return "die"
        return None

    server.faults[GENERATE] = restart
    rollouts = vllm.sample(rows, group_size=2, seeds=range(6))
    assert server.paths().count("collective_rpc") == 3
    mask = rollouts.mask
    rounding.same(lambda: policy(rollouts).log_probs[mask], rollouts.sampler_log_probs[mask])


def test_a_server_that_another_run_uses_is_refused(pair, rows):
    _, server, vllm = pair({"max_new_tokens": 2})

    def other(_):
        server.tag = "of another run"

    server.faults[GENERATE] = other
    with pytest.raises(UserError, match=r"draws with other weights .*does another run use it"):
        vllm.sample(rows, group_size=2, seeds=range(6))
    assert server.paths().count("collective_rpc") == 3


# ---- absence, death and slowness


def test_an_absent_server_is_waited_for(make, engine, sampler):
    policy, server = make("llama"), engine()
    server.stop()
    with pytest.raises(UserError, match=rf"{server.url} cannot be reached; .*sampler.patience"):
        sampler(policy, server)
    later = threading.Timer(0.5, server.start)
    later.start()
    sampler(policy, server, patience=10.0)
    later.join()


def test_waiting_for_a_server_prints_one_note(pair, rows, capsys):
    """At once, and only once for all waiting requests."""
    _, server, vllm = pair({"max_new_tokens": 2}, patience=1.0)
    server.stop()
    with pytest.raises(UserError, match="cannot be reached"):
        vllm.sample(rows, group_size=2, seeds=range(6))
    assert capsys.readouterr().err.strip() == (
        f"note: the vLLM server at {server.url} cannot be reached; requests are repeated for 1 s "
        f"(sampler.patience)"
    )


def test_a_request_that_never_ends_is_named_and_given_up(pair, rows, late, capsys):
    """Its completions fail; the server works, so the others are those that it draws."""
    policy, server, vllm = pair({"max_new_tokens": 2}, timeout=1.0, patience=5.0)
    expected = vllm.sample(rows, group_size=2, seeds=range(6))
    slow, before = late(2.5), server.paths().count(GENERATE)
    server.faults[GENERATE] = lambda body: body["sampling_params"]["seed"] == 2 and slow(body)
    rollouts = vllm.sample(rows, group_size=2, seeds=range(6))
    assert server.paths().count(GENERATE) == before + 3  # not repeated: it is still at work
    assert rollouts.failed.tolist() == [False, False, True, True, False, False]
    assert "took longer than 1 s to answer (sampler.timeout)" in rollouts.failures[2]
    kept = [0, 1, 4, 5]
    assert [rollouts.completions[row] for row in kept] == [expected.completions[n] for n in kept]
    assert rollouts.versions.tolist() == [0] * 6
    log_probs = policy(rollouts).log_probs  # as a pass may contain them
    assert log_probs.isfinite().all()
    assert rollouts.sampler_log_probs.isfinite().all()
    note = "its 2 completions (seed 2) are given up, as failed samples"
    assert note in capsys.readouterr().err

    contexts = vllm.encode(rows)
    (turn,) = vllm.draw(contexts[1:2], seeds=[2], limits=[2])
    assert (turn.ended, turn.ids) == ("failed", ())


def test_a_server_that_does_not_work_is_lost_instead(pair, rows, late):
    _, server, vllm = pair({"max_new_tokens": 2}, timeout=1.0, patience=5.0)
    server.faults[GENERATE] = late(2.5)
    server.faults["health"] = lambda _: (503, {})
    with pytest.raises(UserError, match=r"took longer than 1 s .*sampler.timeout"):
        vllm.sample(rows, group_size=2, seeds=range(6))
    assert server.paths().count(GENERATE) == 2 + 3  # the first ones check the weights


def test_a_run_goes_on_without_what_was_given_up(run, engine, late, tmp_path):
    server, slow, drawn = engine(), late(2.5), []

    def one(body):
        if body["sampling_params"].get("stop_token_ids"):
            drawn.append(body)
            if len(drawn) == 6:
                slow(body)

    server.faults[GENERATE] = one
    more = {"sampler.timeout": 1.0, "evaluation.prompts": 0, "train.max_failed": 0.9}
    assert run(server, **more).steps == 3
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert sorted(line.get("failed", 0) for line in lines if "loss" in line) == [0, 0, 3]


def test_failed_requests_are_repeated_for_a_while(pair, rows):
    _, server, vllm = pair({"max_new_tokens": 2}, patience=5.0)
    failures = iter([(500, {"error": {"message": "engine died"}})] * 2)
    server.faults[GENERATE] = lambda _: next(failures, None)
    assert len(vllm.sample(rows, group_size=2, seeds=range(6))) == 6
    _, server, vllm = pair({"max_new_tokens": 2})
    server.faults[GENERATE] = lambda _: (500, {"error": {"message": "engine died"}})
    with pytest.raises(UserError, match=r"fails: engine died; .*sampler.patience"):
        vllm.sample(rows, group_size=2, seeds=range(6))


def test_a_run_resumes_after_its_server_died(run, engine, tmp_path, rounding):
    server = engine()
    follows = iter(range(100))
    server.faults["collective_rpc"] = lambda _: "die" if next(follows) == 2 else None
    with pytest.raises(UserError, match=f"{server.url} cannot be reached"):
        run(server, **{"train.checkpoint_every": 1})
    assert (tmp_path / "run/checkpoints").is_dir()
    assert not list(Path(tmp_path).glob("groupwise-*"))
    result = run(server, resume=True, **{"train.checkpoint_every": 1})
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == [1, 2, 3]
    bound = rounding.ratio_bound(result.policy, {"prompt": "word 1"})
    assert all(line["mismatch/max"] <= bound for line in lines if "loss" in line)
