"""Servers that a file names: they may be lost, replaced by others at other addresses, and leave."""

import threading
from pathlib import Path

import pytest
import torch

from groupwise.kit.errors import UserError
from groupwise_llm.vllm.sampler import VLLM

GENERATE, LOAD = "inference/v1/generate", "collective_rpc"


@pytest.fixture
def roster(tmp_path):
    """roster(*engines) writes the file that names them, and returns its path."""

    def write(*engines):
        path = tmp_path / "servers"
        path.write_text("".join(f"{own.url}\n" for own in engines))
        return str(path)

    return write


@pytest.fixture
def named(make, roster, sampler):
    """named(*engines, **settings) -> a policy, and a sampler that has sent it to these engines."""

    def build(*engines, **settings):
        policy = make("llama", max_new_tokens=4)
        vllm = sampler(policy, servers=roster(*engines), **settings)
        vllm.follow(policy, "policy", 0)
        return policy, vllm

    return build


def move(policy):
    with torch.no_grad():
        policy.model.lm_head.weight.copy_(policy.model.lm_head.weight.flip(0))


def draw(vllm, rows):
    return vllm.sample(rows, group_size=2, seeds=range(6))


def test_a_server_at_another_address_joins_and_one_that_left_is_dropped(
    named, engine, roster, rows, capsys
):
    one, other, new = engine(), engine(), engine()
    policy, vllm = named(one, other)
    expected = draw(vllm, rows)
    one.stop()
    assert draw(vllm, rows).completions == expected.completions
    roster(other, new)
    # Before a batch, and at once with the weights.
    assert draw(vllm, rows).completions == expected.completions
    assert [server.url for server in vllm.fleet.servers] == [other.url, new.url]
    assert {LOAD, GENERATE} <= {*new.paths()}
    notes = capsys.readouterr().err
    assert f"{new.url} has joined" in notes
    assert f"{one.url} has left" in notes

    roster(new)  # which the launcher stops, though it works
    move(policy)
    other.calls.clear()
    vllm.follow(policy, "policy", 1)
    assert other.calls == []
    assert draw(vllm, rows).versions.tolist() == [1] * 6


def test_the_last_server_is_replaced_in_the_middle_of_a_batch(
    named, engine, roster, rows, rounding
):
    one, new = engine(), engine()
    policy, vllm = named(one, patience=60.0)
    expected, began = draw(vllm, rows), threading.Event()

    def die(_):
        if not began.is_set():
            began.set()
            threading.Timer(0.2, roster, [new]).start()
        return "die"

    one.faults[GENERATE] = die
    rollouts = draw(vllm, rows)
    assert rollouts.completions == expected.completions
    assert [server.url for server in vllm.fleet.servers] == [new.url]
    # It had the weights before it got requests: none was drawn twice.
    assert new.paths().index(LOAD) < new.paths().index(GENERATE)
    assert new.paths().count(GENERATE) == 3
    mask = rollouts.mask
    rounding.same(lambda: policy(rollouts).log_probs[mask], rollouts.sampler_log_probs[mask])


def test_a_replacement_is_waited_for_before_weights_are_sent(named, engine, roster, rows, capsys):
    one, new = engine(), engine()
    policy, vllm = named(one, patience=60.0)
    one.stop()
    later = threading.Timer(0.2, roster, [new])
    later.start()
    move(policy)
    vllm.follow(policy, "policy", 1)
    assert draw(vllm, rows).versions.tolist() == [1] * 6
    assert GENERATE in new.paths()
    assert "no vLLM server answers; waiting for 60 s" in capsys.readouterr().err


def test_without_a_replacement_the_loss_of_the_last_server_is_an_error(named, engine, rows):
    one = engine()
    _, vllm = named(one, patience=0.5)
    one.stop()
    with pytest.raises(UserError, match=r"cannot be reached; .* repeated for 0.5 s"):
        draw(vllm, rows)


def test_a_newcomer_that_cannot_be_used_is_left_out_with_a_note(
    named, engine, roster, rows, capsys
):
    one, half = engine(), engine(dtype="torch.bfloat16")
    _, vllm = named(one)
    roster(one, half)
    for _ in range(2):
        draw(vllm, rows)
    assert {*half.paths()} == {"health", "server_info"}
    notes = capsys.readouterr().err
    assert notes.count(f"{half.url} computes in bfloat16") == notes.count("It is left out") == 1


def test_a_newcomer_of_another_model_is_refused(named, engine, roster):
    one = engine()
    policy, vllm = named(one)
    roster(one, engine(model={"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="nats on average: it runs another model"):
        vllm.follow(policy, "policy", 1)


def test_a_server_that_is_gone_when_the_run_begins_is_left_out(named, engine, rows):
    one, gone = engine(), engine()
    gone.stop()
    _, vllm = named(gone, one)
    assert [server.url for server in vllm.fleet.servers] == [one.url]
    assert len(draw(vllm, rows)) == 6


def test_at_the_start_a_replacement_is_waited_for(named, engine, roster):
    one, gone = engine(), engine()
    gone.stop()
    later = threading.Timer(0.2, roster, [one])
    later.start()
    _, vllm = named(gone, patience=60.0)
    assert [server.url for server in vllm.fleet.servers] == [one.url]


def test_a_file_that_is_written_anew_loses_no_server(named, engine, roster, rows):
    one, other = engine(), engine()
    _, vllm = named(one, other)
    path = Path(vllm.config.servers)
    for text in ("", "\n", "http", None):
        path.write_text(text) if text is not None else path.unlink()
        draw(vllm, rows)
        assert [server.url for server in vllm.fleet.living] == [one.url, other.url]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("", "names no server yet"), ("one:1\n", "found 'one:1'")],
)
def test_at_the_start_the_file_must_name_a_server(make, sampler, tmp_path, text, message):
    path = tmp_path / "servers"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=rf"sampler.servers: {path}.*{message}"):
        sampler(make("llama"), servers=str(path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"servers": "servers", "transfer": "nccl"}, "so none can be replaced; list their"),
        ({"servers": "http://one:1"}, r"expected a list or a file: servers: \['http://one:1'\]"),
        ({"servers": ""}, "set either servers"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        VLLM.Config(**settings)


def test_on_gpus_a_file_of_servers_gets_files_by_default():
    assert not VLLM.Config(servers="servers").has_lasting_servers
    assert VLLM.Config(servers=["http://one:1"]).has_lasting_servers
