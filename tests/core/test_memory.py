"""The memory of a process that `groupwise check` estimates, and its warning if it is too much."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from pydantic import BaseModel
from tests.command_line import call
from torch import nn

from groupwise import Policy, Sampler
from groupwise.kit import memory
from groupwise.kit.memory import Workload

GIB = 2**30
CONFIG = {
    "policy": {"name": f"{__name__}:Sized"},
    "prompts": {"name": "rows", "rows": [{"prompt": str(n)} for n in range(40)]},
    "rewards": [{"name": f"{__name__}:right"}],
    "train": {"groups_per_step": 10, "updates_per_rollout": 2, "group_size": 4, "microbatch": 7},
    "evaluation": {"prompts": 2, "greedy": False},
}


class Sized(Policy):
    """Estimates 1 GiB for each rollout and decision."""

    class Config(BaseModel):
        pass

    def shard(self, mesh: Any) -> None:
        raise NotImplementedError

    @classmethod
    def estimate(cls, config: Config, load: Workload) -> dict[str, int]:
        sizes = {"weights": 64 * GIB // load.shards, "rollouts": load.rollouts * GIB}
        assert load.rollouts % load.group_size == 0
        if load.decisions:
            sizes["activations"] = load.decisions * GIB
        if load.sampled:
            sizes["cache"] = load.sampled * GIB
        return sizes


class Storing(Sized):
    """Stores 1 GiB of CPU memory for each rollout of a step, and for each prompt."""

    @classmethod
    def estimate_cpu(cls, config: Sized.Config, **counts: Any) -> dict[str, int]:
        assert counts["references"] == 0
        assert counts["facts"] == frozenset()
        return {name: counts[name] * GIB for name in ("rollouts", "prompts")}


class Engine(Sampler):
    class Config(BaseModel):
        pass


def right(completions: Any, **_: Any) -> list[float]:
    return [1.0 for _ in completions]


class Held:
    """A reward that estimates 3 GiB for a model."""

    def __init__(self, model: str) -> None:
        self.model = model

    def estimate(self) -> dict[str, int]:
        if self.model == "none":
            raise ValueError("there is no such model")
        return {f"judge {self.model}": 3 * GIB}

    def estimate_cpu(self) -> dict[str, int]:
        return {f"away {self.model}": 5 * GIB}

    def __call__(self, completions: Any, **_: Any) -> list[float]:
        return right(completions)


one, same, other, missing = Held("one"), Held("one"), Held("other"), Held("none")


def invoke_check(folder: Path, *arguments: object, **sections: Any) -> Any:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **sections}))
    return call("check", path, *arguments)


def check_output(folder: Path, *arguments: object, **sections: Any) -> Any:
    result = invoke_check(folder, *arguments, **sections)
    assert result.exit_code == 0, result.output
    return result.stdout


def set_memory(monkeypatch: pytest.MonkeyPatch, *, machine: int, device: int | None = None) -> None:
    """GiB of this machine, and of its GPU; None for a machine without one."""
    sizes = {"SC_PHYS_PAGES": machine, "SC_PAGE_SIZE": GIB}
    monkeypatch.setattr(os, "sysconf", lambda name: sizes[name])
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    gpu = SimpleNamespace(total_memory=(device or 0) * GIB, name="GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device is not None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)


def rows(output: str) -> dict[str, float]:
    """GiB by purpose."""
    lines = [line.split() for line in output.splitlines() if line.endswith(" GiB")]
    return {" ".join(words[:-2]): float(words[-2]) for words in lines}


def test_the_peak_is_the_larger_of_sampling_and_updating(tmp_path: Path) -> None:
    sizes = {"weights": 64, "rollouts": 20, "activations": 7, "cache": 40, "at most at once": 124}
    assert rows(check_output(tmp_path)) == sizes
    few = rows(check_output(tmp_path, "train.sample_batch=4"))
    assert few == sizes | {"cache": 4, "at most at once": 91}


def test_a_process_holds_its_share_of_the_groups(tmp_path: Path) -> None:
    """Of 4 processes: at most 2 of 5 groups in an update, and 3 of 10 groups while sampling."""
    sizes = rows(check_output(tmp_path, "--processes", 4))
    assert sizes == {
        "weights": 64,
        "rollouts": 8,
        "activations": 7,
        "cache": 12,
        "at most at once": 84,
    }


def test_a_policy_of_a_pool_draws_its_share_of_a_group(tmp_path: Path) -> None:
    players = [{"label": label, "policy": CONFIG["policy"]} for label in ("one", "two")]
    config = {**CONFIG, "policy": None, "environment": "pool", "players": players}
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(config))
    result = call("check", path)
    lines = [line for line in result.stdout.splitlines() if line.endswith(" GiB")]
    sizes = [float(line.split()[-2]) for line in lines if "rollouts" in line]
    assert rows(check_output(tmp_path))["rollouts"] == 20.0
    assert sizes == [10.0, 10.0], result.output


def test_sharding_divides_the_weights_by_the_number_of_processes(tmp_path: Path) -> None:
    output = check_output(tmp_path, "--processes", 4, "train.shard=true")
    assert rows(output)["weights"] == 16
    assert "memory of each of 4 processes, among which weights are divided, " in output


def test_copies_divide_the_weights_among_fewer_processes(tmp_path: Path) -> None:
    output = check_output(tmp_path, "--processes", 4, "train.shard=2")
    assert rows(output)["weights"] == 32
    assert "memory of each of 4 processes, among each 2 of which weights are divided, " in output
    result = invoke_check(tmp_path, "--processes", 4, "train.shard=3")
    assert result.exit_code == 2
    assert "train.shard: 3: 4 processes cannot be divided into groups of 3" in result.stderr


def test_shard_is_refused_for_a_policy_that_does_not_support_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sized, "shard", Policy.shard)
    result = invoke_check(tmp_path, "train.shard=true")
    assert result.exit_code == 2
    assert "train.shard: Sized cannot be sharded; leave train.shard out" in result.stderr


def test_with_another_sampler_the_policy_has_no_cache(tmp_path: Path) -> None:
    sampler = {"name": f"{__name__}:Engine"}
    assert rows(check_output(tmp_path, sampler=sampler)) == {
        "weights": 64,
        "rollouts": 20,
        "activations": 7,
        "held while the sampler draws": 84,
        "at most at once": 91,
    }


def test_an_estimate_above_the_memory_of_the_device_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for available, has_warning in [(124, False), (123, True)]:
        set_memory(monkeypatch, machine=1000, device=available)
        text = (
            "warning: a process takes 124.00 GiB, more than the 123.00 GiB of this GPU; most of "
            "it is weights 64.00 GiB, cache 40.00 GiB, rollouts 20.00 GiB "
        )
        assert (text in check_output(tmp_path)) == has_warning


def test_cpu_memory_has_a_table_and_a_warning_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"name": f"{__name__}:Storing"}
    set_memory(monkeypatch, machine=500)
    output = check_output(tmp_path, policy=policy)
    title = "CPU memory of each process in addition, estimated"
    assert rows(output.partition(title)[2]) == {"rollouts": 40, "prompts": 40, "together": 80}
    assert "warning: a process takes" not in output  # without a GPU all of it is one memory
    set_memory(monkeypatch, machine=79, device=500)
    text = "warning: a process takes 80.00 GiB, more than the 79.00 GiB that a process has here; "
    assert text in check_output(tmp_path, policy=policy)
    halved = check_output(tmp_path, "--processes", 2, policy=policy)
    assert rows(halved.partition(title)[2])["rollouts"] == 20
    assert title not in check_output(tmp_path)


def test_models_of_rewards_count_once_each_and_in_addition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [{"name": f"{__name__}:{name}", "label": name} for name in ("one", "same")]
    watched = [{"name": f"{__name__}:other"}]
    set_memory(monkeypatch, machine=1000, device=129)
    output = check_output(tmp_path, rewards=held, watch=watched)
    title = "memory of rewards in addition, estimated"
    on_device, _, in_cpu = output.partition(title)[2].partition(f"CPU {title}")
    assert rows(on_device) == {"judge one": 3, "judge other": 3}
    assert rows(in_cpu) == {"away one": 5, "away other": 5}
    assert "GiB that a process has here" not in output
    set_memory(monkeypatch, machine=9, device=1000)
    text = "warning: a process takes 10.00 GiB, more than the 9.00 GiB that a process has here"
    assert text in check_output(tmp_path, rewards=held, watch=watched)
    set_memory(monkeypatch, machine=1000, device=129)
    assert "warning: a process takes 130.00 GiB, more than the 129.00 GiB of this GPU" in output
    assert title not in check_output(tmp_path)
    result = invoke_check(tmp_path, rewards=[{"name": f"{__name__}:missing"}])
    assert result.exit_code == 2
    assert "there is no such model" in result.stderr


def test_processes_of_one_machine_share_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_memory(monkeypatch, machine=400)
    assert "warning: a process takes" not in check_output(tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert "124.00 GiB, more than the 100.00 GiB that a process has here" in check_output(tmp_path)


class Blocks(nn.Module):
    """An embedding with 50 weights, shared with the head, and blocks with 12 and 40 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 5)
        inner = nn.ModuleList([nn.Linear(4, 5, bias=False), nn.Linear(5, 4, bias=False)])
        self.body = nn.ModuleDict(
            {"layers": nn.ModuleList([nn.Linear(3, 4, bias=False), nn.Sequential(inner)])}
        )
        self.head = self.embedding


def test_gathered_weights_are_two_blocks_and_those_outside_blocks() -> None:
    model = Blocks()
    assert memory.gathered(model, None, training=False) == {"gathered blocks": 4 * (50 + 2 * 40)}
    sizes = memory.gathered(model, 2, training=True)
    assert sizes == {
        "gathered blocks": 2 * 130,
        "gradients of gathered blocks": 2 * 130 + 4 * 50,
    }
    model.embedding.requires_grad_(False)
    sizes = memory.gathered(model, 2, training=True)
    assert sizes["gradients of gathered blocks"] == 2 * 80 + 4 * 40
    assert memory.gathered(nn.Linear(3, 2), None, training=False) == {"gathered blocks": 32}
