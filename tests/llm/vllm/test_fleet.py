"""Several servers: others do the work of one that is lost."""

import threading

import pytest

from groupwise.kit.errors import UserError

GENERATE = "inference/v1/generate"


def test_others_do_the_work_of_a_server_that_is_lost(make, engine, sampler, rows, capsys):
    """Also in the middle of a batch; it is sent the weights again when it is back."""
    policy, servers = make("llama", max_new_tokens=4), [engine(), engine()]
    vllm = sampler(policy, *servers, patience=60.0)
    vllm.follow(policy, "policy", 0)
    expected = vllm.sample(rows, group_size=2, seeds=range(6))
    servers[1].faults[GENERATE] = lambda _: "die"
    rollouts = vllm.sample(rows, group_size=2, seeds=range(6))
    assert rollouts.completions == expected.completions
    servers[1].stop()
    vllm.follow(policy, "policy", 1)
    assert vllm.sample(rows, group_size=2, seeds=range(6)).versions.tolist() == [1] * 6
    notes = capsys.readouterr().err
    assert notes.count(f"{servers[1].url} cannot be reached") == 1
    assert notes.count("The other servers do its work until it is back") == 1

    servers[1].faults.clear()
    servers[1].start()
    servers[1].calls.clear()
    rollouts = vllm.sample(rows, group_size=2, seeds=range(6))
    assert rollouts.completions == expected.completions
    assert {"collective_rpc", GENERATE} <= set(servers[1].paths())
    assert f"{servers[1].url} is back" in capsys.readouterr().err


def test_the_last_server_is_waited_for_and_its_loss_is_an_error(make, engine, sampler, rows):
    policy, servers = make("llama", max_new_tokens=2), [engine(), engine()]
    vllm = sampler(policy, *servers, patience=0.5)
    vllm.follow(policy, "policy", 0)
    for server in servers:
        server.stop()
    with pytest.raises(UserError, match=r"cannot be reached; .* repeated for 0.5 s"):
        vllm.sample(rows, group_size=2, seeds=range(6))


def test_all_completions_of_a_step_are_requested_at_once(run, engine):
    """`train.sample_batch` does not cut them: the second batch would wait for the first one."""
    server = engine(max_rows=1)  # a request for each completion
    waiting = threading.Barrier(6, timeout=60)

    def wait(body):
        if body["sampling_params"].get("stop_token_ids"):  # not one that checks the weights
            waiting.wait()

    server.faults[GENERATE] = wait
    more = {"train.sample_batch": 3, "train.steps": 2, "evaluation.prompts": 0}
    assert run(server, **more).steps == 2
    assert not waiting.broken


def test_parts_are_ready_one_by_one(make, engine, sampler, rows):
    """The rewards of a part are computed while later completions are sampled."""
    policy, server = make("llama", max_new_tokens=3), engine()
    vllm = sampler(policy, server)
    vllm.follow(policy, "policy", 0)
    expected = vllm.sample(rows, group_size=2, seeds=range(6))
    hold = threading.Event()
    last = policy.prompts.encode(rows[-1]).tolist()
    server.faults[GENERATE] = lambda body: (
        hold.wait(60) and None if body["token_ids"] == last else None
    )
    parts = vllm.stream(rows, group_size=2, seeds=range(6), most=2)
    assert next(parts).completions == expected.completions[:4]
    assert not hold.is_set()
    hold.set()
    assert next(parts).completions == expected.completions[4:]


def test_a_server_that_is_lost_before_the_first_check_is_left_out(make, engine, sampler, rows):
    policy, servers = make("llama", max_new_tokens=2), [engine(), engine()]
    servers[0].faults[GENERATE] = lambda _: "die"
    vllm = sampler(policy, *servers)
    vllm.follow(policy, "policy", 0)
    assert vllm.fleet.living == vllm.fleet.servers[1:]
    assert len(vllm.sample(rows, group_size=2, seeds=range(6))) == 6
