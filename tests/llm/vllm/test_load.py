"""Requests go to the server with the least work, and groups are divided where that helps."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise_llm.vllm.load import STAYS, Load
from groupwise_llm.vllm.request import AT_ONCE, FOR_EACH, PROMPT_SHARE, part, split

GENERATE = "inference/v1/generate"


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 16), st.integers(0, 99), st.booleans()), max_size=60),
)
def test_a_request_goes_to_the_server_with_the_least_work_per_gpu(sizes, requests):
    load, servers = Load(), dict(enumerate(sizes))
    work, running = Counter(), []
    for count, turn, ends in requests:
        if ends and running:
            server, done = running.pop(turn % len(running))
            load.release(server, done)
            work[server] -= done
        server = load.take(servers, count, turn=turn, context=None)
        assert work[server] / sizes[server] == min(work[n] / sizes[n] for n in servers)
        work[server] += count
        running.append((server, count))


@pytest.mark.parametrize(("prompts", "servers"), [(2, 4), (1, 8), (3, 8), (5, 3)])
def test_eight_processes_that_do_not_know_of_each_other_use_all_servers(prompts, servers):
    completions = Counter()
    infos = dict.fromkeys(range(servers), SimpleNamespace(max_completions=64, max_tokens=4096))
    policy = SimpleNamespace(config=SimpleNamespace(max_new_tokens=100))
    ids = [torch.arange(9)] * prompts
    for rank in range(8):
        load = Load()
        for own in split(
            *(ids, 16, range(16 * prompts)), infos=infos, policy=policy, process=(rank, 8)
        ):
            server = load.take(dict.fromkeys(infos, 1), own.count, turn=own.turn, context=own.begun)
            completions[server] += own.count
    assert max(completions.values()) <= 1.25 * 8 * 16 * prompts / servers


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 300), st.integers(1, 70))
def test_the_completions_of_a_group_have_the_same_seeds_however_it_is_divided(
    size, prompts, servers, most
):
    infos = dict.fromkeys(range(servers), SimpleNamespace(max_completions=most, max_tokens=10_000))
    policy = SimpleNamespace(config=SimpleNamespace(max_new_tokens=5000))
    seeds = [1000 * row + place for row in range(prompts) for place in range(size)]
    requests = split(
        *([torch.arange(9)] * prompts, size, seeds), infos=infos, policy=policy, process=(0, 1)
    )
    drawn = [own.seed + number for own in requests for number in range(own.count)]
    assert drawn == seeds
    assert max(own.count for own in requests) <= most


@given(
    st.integers(1, 64), st.floats(0, 4), st.integers(1, 600), st.integers(1, 64), st.integers(1, 64)
)
def test_a_group_is_divided_only_where_that_helps(size, prompt, groups, processes, servers):
    count = part(size, prompt, groups=groups, processes=processes, servers=servers)
    assert 1 <= count <= size
    if groups * processes >= FOR_EACH * servers or prompt >= PROMPT_SHARE * size:
        assert count == size
    if count < size:
        assert groups * size / count <= AT_ONCE
        assert prompt <= PROMPT_SHARE * count
        assert groups * processes * size / count <= FOR_EACH * servers
        if count > 1:  # and no further than needed
            less = count - 1
            assert (
                groups * size > AT_ONCE * less
                or prompt > PROMPT_SHARE * less
                or groups * processes * size > FOR_EACH * servers * less
            )


def test_a_context_stays_with_its_server_unless_that_has_much_more_work():
    load, servers = Load(), {"one": 1, "other": 1}
    first = load.take(servers, 1, turn=0, context=5)
    load.remember(6, first)
    for _ in range(STAYS):
        assert load.take(servers, 1, turn=1, context=6) == first
    assert load.take(servers, 1, turn=1, context=6) != first
    (alone,) = {"one", "other"} - {first}
    assert load.take({alone: 1}, 1, turn=0, context=5) == alone  # the other one is lost


def test_a_group_is_drawn_by_several_servers(make, engine, sampler, rows):
    """Its completions are those that one server draws."""
    policy, servers = make("llama", max_new_tokens=32), [engine(), engine()]
    alone = sampler(policy, servers[0])
    alone.follow(policy, "policy", 0)
    expected = alone.sample(rows[1:2], group_size=4, seeds=range(4))
    vllm = sampler(policy, *servers)
    vllm.follow(policy, "policy", 0)
    for server in servers:
        server.calls.clear()
    rollouts = vllm.sample(rows[1:2], group_size=4, seeds=range(4))
    assert rollouts.completions == expected.completions
    assert all(GENERATE in server.paths() for server in servers)


def test_a_data_parallel_server_gets_as_much_as_its_gpus_can_do(make, engine, sampler):
    policy, servers = make("llama", max_new_tokens=2), [engine(data_parallel=3), engine()]
    vllm = sampler(policy, *servers)
    assert [info.workers for info in vllm.fleet.infos.values()] == [3, 1]
    context = vllm.encode([{"prompt": "a"}])
    (request,) = split(
        [context[0].prompt_ids],
        1,
        [0],
        infos=vllm.infos,
        policy=policy,
        process=(0, 1),
    )
    taken = Counter(vllm.fleet.take(request).url for _ in range(12))
    assert taken == {servers[0].url: 9, servers[1].url: 3}
