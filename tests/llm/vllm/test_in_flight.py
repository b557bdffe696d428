"""Servers get weights while requests run: each token is of the weights that its server states."""

import copy
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.core.launching import launch

from groupwise.kit.errors import UserError
from groupwise_llm.settings import Lora

BEFORE = 5
"""Tokens that each completion has before the exchange."""
SEEDS = (3, 4, 5)
"""Whose completions are long enough."""
WAIT = 30
"""Seconds, for what takes none unless a test fails."""


def move(policy, size=0.1):
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for weight in filter(lambda each: each.requires_grad, policy.parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(size * noise * weight.abs().mean().clamp(min=0.1))


@pytest.fixture
def exchange(pair, rows):
    """exchange(policy={...}, spoil=..., **facts) -> the policy with the older weights, the one with
    the newer ones, rollouts that were begun with the former and ended after the latter had arrived,
    the server and the sampler."""

    def go(policy=None, spoil=lambda server: None, **facts):
        of = {"max_new_tokens": 12, **(policy or {})}
        policy, server, vllm = pair(of, {"cached": True, **facts})
        before, all_wait, sent = copy.deepcopy(policy), threading.Barrier(4), threading.Event()

        def halt(count):
            if count == BEFORE and not sent.is_set():
                all_wait.wait(WAIT)
                sent.wait(WAIT)

        server.halt = halt
        spoil(server)
        with ThreadPoolExecutor(1) as thread:
            sample = thread.submit(vllm.sample, rows, group_size=1, seeds=SEEDS)
            all_wait.wait(WAIT)
            move(policy)
            vllm.follow(policy, "policy", 1)
            sent.set()
            return before, policy, sample.result(), server, vllm

    return go


def same_in_each_span(rounding, before, after, rollouts):
    """The server's log-probs are those of the weights of each span."""
    for policy, part in ((before, slice(BEFORE)), (after, slice(BEFORE, None))):
        mask = rollouts.mask[:, part]
        drawn = rollouts.sampler_log_probs[:, part] * mask
        rounding.same(lambda: policy(rollouts).log_probs[:, part] * mask, drawn)  # noqa: B023


def test_log_probs_of_each_span_are_those_of_its_weights(exchange, rounding):
    before, after, rollouts, server, vllm = exchange()
    assert vllm.follows_in_flight
    lengths = rollouts.lengths.tolist()
    assert min(lengths) > BEFORE
    spans = [((0, BEFORE), (1, length - BEFORE)) for length in lengths]
    assert [turn.spans for (turn,) in rollouts.turns] == spans
    assert rollouts.versions.tolist() == [0] * 3  # the oldest
    same_in_each_span(rounding, before, after, rollouts)
    with torch.no_grad():  # and not those of the other weights
        moved = (before(rollouts).log_probs - after(rollouts).log_probs)[rollouts.mask]
    assert moved.abs().max() > 0.01
    paths = server.paths()
    last = len(paths) - paths[::-1].index("pause") - 1
    assert paths[last : last + 7] == [
        *("pause", "update_weight_version", "collective_rpc", "reset_encoder_cache"),
        *("reset_prefix_cache", "update_weight_version", "resume"),
    ]
    assert server.queries["pause"] == {"mode": "keep", "clear_cache": "true"}
    assert server.queries["reset_prefix_cache"] == {"reset_running_requests": "true"}


def keep_caches(server):
    class Keeps(type(server)):
        drops = property(lambda self: 0, lambda self, value: None)

    server.__class__ = Keeps


def test_keys_and_values_of_older_weights_would_be_noticed_here(exchange, rounding):
    """What the test above would say of a server that goes on with them."""
    before, after, rollouts, *_ = exchange(spoil=keep_caches)
    with pytest.raises(AssertionError, match="times what rounding explains"):
        same_in_each_span(rounding, before, after, rollouts)
    with torch.no_grad():
        gaps = (after(rollouts).log_probs - rollouts.sampler_log_probs) * rollouts.mask
    assert gaps[:, BEFORE:].abs().max() > 1e-3


def load_nothing(server):
    server.load = lambda folder: None


def test_weights_that_do_not_arrive_meanwhile_are_noticed_at_the_next_transfer(exchange):
    """The canary's text may have to wait behind the requests that run."""
    _, policy, *_, vllm = exchange(spoil=load_nothing)
    with pytest.raises(UserError, match="but computes with others"):
        vllm.follow(policy, "policy", 2)


def test_weights_older_than_a_request_are_sent_again(exchange, rows):
    """As those of a server that was lost at the transfer, and is back."""
    *_, server, vllm = exchange()
    older, loads = next(tag for tag in vllm.exchange.tags._places), "collective_rpc"
    count = server.paths().count(loads)

    def restore(body):
        if server.paths().count(loads) == count:
            server.tag = older

    server.faults["inference/v1/generate"] = restore
    rollouts = vllm.sample(rows, group_size=1, seeds=range(3))
    assert rollouts.versions.tolist() == [1] * 3
    assert server.paths().count(loads) == count + 1


def test_requests_go_on_with_the_adapters_that_they_began_with(exchange, rounding):
    before, after, rollouts, server, vllm = exchange({"lora": Lora(rank=4)}, lora_rank=8)
    assert vllm.follows_in_flight
    lengths = rollouts.lengths.tolist()
    assert [turn.spans for (turn,) in rollouts.turns] == [((0, length),) for length in lengths]
    mask, drawn = rollouts.mask, rollouts.sampler_log_probs * rollouts.mask
    rounding.same(lambda: before(rollouts).log_probs * mask, drawn)
    with torch.no_grad():
        moved = (before(rollouts).log_probs - after(rollouts).log_probs)[mask]
    assert moved.abs().max() > 0.01
    # They stay until no request runs with them.
    assert len(server.adapters) == 2
    for version in (2, 3):
        vllm.follow(after, "policy", version)
    assert len(server.adapters) == 2
    assert server.tag == vllm.tag == [*server.adapters][-1]
    again = vllm.sample([{"prompt": "a"}], group_size=2, seeds=[0, 1])
    assert again.versions.tolist() == [3, 3]


def test_servers_that_sleep_are_awaited(pair):
    *_, vllm = pair(sleep=True)
    assert not vllm.follows_in_flight


def test_a_run_exchanges_weights_under_its_requests(run, engine, rounding):
    server, changed = engine(cached=True), threading.Condition()

    def halt(count):
        """After the first updates each completion waits for the next one, as long as there may be
        any."""
        transfers = server.paths().count("resume")
        if count == 2 and transfers > 1:
            with changed:
                changed.wait_for(lambda: server.paths().count("resume") > transfers, 1.0)

    def resumed(_):
        with changed:
            changed.notify_all()

    server.faults["resume"] = resumed
    server.halt = halt
    more = {"train.ahead": 2, "train.steps": 5, "evaluation.prompts": 0}
    result = run(server, **more)
    lines = [
        json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()
    ]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 5
    assert any(line["staleness/decisions"] < line["staleness/mean"] for line in steps)
    bound = rounding.ratio_bound(result.policy, {"prompt": "word 1"})
    assert max(line.get("mismatch/max", 0.0) for line in steps) <= bound


CHILD = """
import copy, json, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from tests import rounding
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.sampler import VLLM

accelerator = Accelerator(cpu=True)
out = Path(sys.argv[2])
model, url = json.loads((out.parent / "places.json").read_text())
policy = LanguageModel(LanguageModel.Config(model=model, max_new_tokens=12))
policy.place("cpu")
sampler = VLLM(VLLM.Config(servers=[url], folder=str(out.parent), patience=0.0), policy)
sampler.follow(policy, "policy", 0)
copies, generator = [copy.deepcopy(policy)], torch.Generator().manual_seed(0)
rank = accelerator.process_index

def draw(number):
    time.sleep(0.1 * rank)  # so that some requests begin while the other process exchanges
    seeds = [100 * rank + 10 * number + row for row in range(2)]
    return sampler.sample([{"prompt": "a"}, {"prompt": "b"}], group_size=1, seeds=seeds)

with ThreadPoolExecutor(3) as threads:
    drawn = [threads.submit(draw, number) for number in range(12)]
    for version in range(1, 6):
        time.sleep(0.2)
        with torch.no_grad():
            for weight in policy.parameters():
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(0.1 * noise * weight.abs().mean())
        copies.append(copy.deepcopy(policy))
        sampler.follow(policy, "policy", version)
    several = 0
    for rollouts in (each.result() for each in drawn):
        for row, (turn,) in enumerate(rollouts.turns):
            start, one = 0, rollouts.select([row])
            for version, count in turn.spans:
                part = slice(start, start + count)
                own = one.sampler_log_probs[:, part]
                rounding.same(lambda: copies[version](one).log_probs[:, part], own)
                start += count
            several += len(turn.spans) > 1
assert sum(gather_object([several])) > 0
sampler.close()
if accelerator.is_main_process:
    out.write_text("null")
accelerator.end_training()
"""


@pytest.mark.slow
def test_several_processes_draw_while_one_of_them_sends(engine, saved, tmp_path):
    server = engine(cached=True)
    server.halt = lambda count: time.sleep(0.02)
    (tmp_path / "places.json").write_text(json.dumps([str(saved("llama")), server.url]))
    launch(CHILD, tmp_path, 2, limit=220, imports=["groupwise_llm.policy"])
    assert server.paths().count("collective_rpc") == 6  # one for each version
