"""A sampler named in a configuration: `check`, `train`, `resume` and `eval` use it."""

import json

import pytest
from tests import command_line

MODULE = """
import copy
from dataclasses import replace

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from groupwise import LogProbs, Policy, Rollouts, Sampler


class Thrower(Policy):
    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")

        reach: float = 0.0

    def __init__(self, config):
        super().__init__()
        self.aim = nn.Parameter(torch.tensor([config.reach]))

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        rows = [row for row in prompts for _ in range(group_size)]
        noise = [torch.randn((), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        hits = self.aim.detach() + (0.0 if purpose == "greedy" else 0.5) * torch.stack(noise)
        rollouts = Rollouts(
            prompts=rows,
            completions=hits.tolist(),
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            mask=torch.ones(len(rows), 1, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
            trajectory={"hits": hits.unsqueeze(1)},
        )
        return replace(rollouts, sampler_log_probs=self(rollouts).log_probs.detach())

    def forward(self, rollouts, decisions=slice(None)):
        gap = rollouts.tensor("hits")[:, decisions] - self.aim
        return LogProbs(log_probs=-2.0 * gap.square())


class Other(Policy):
    pass


class Engine(Sampler):
    policy_class = Thrower

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")

        url: str = "local"
        api_key: str = ""

    def __init__(self, config, policy):
        assert config.api_key in ("", "geheim-4711")
        self.copy, self.version = copy.deepcopy(policy), -1

    def follow(self, policy, name, version):
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, *args, **options):
        rollouts = self.copy.sample(*args, **options)
        return replace(rollouts, versions=torch.full((len(rollouts),), self.version))


class ForOther(Engine):
    policy_class = Other


def near_two(completions, trainer_state, **_):
    # `eval` must pass the same state as the run, since rewards may depend on it.
    return [-abs(hit - 2.0) - 0.001 * trainer_state.epoch for hit in completions]
"""
CONFIG = """
policy: {name: "throwing:Thrower"}
sampler: {name: "throwing:Engine", api_key: "${ENGINE_KEY}"}
prompts: {name: rows, held_out: 0.3, rows: ROWS}
rewards: ["throwing:near_two"]
algorithm: {importance: token}
train: {steps: 4, groups_per_step: 2, group_size: 4, learning_rate: 0.1, ahead: 1, ema: 0.8}
evaluation: {prompts: 2, samples: 2}
output: run
""".replace("ROWS", json.dumps([{"prompt": f"throw {number}"} for number in range(12)]))


@pytest.fixture
def call(tmp_path, monkeypatch):
    (tmp_path / "throwing.py").write_text(MODULE)
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINE_KEY", "geheim-4711")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "throwing", raising=False)

    def call(*arguments):
        result = command_line.call(*arguments, env={"COLUMNS": "200"})
        assert not isinstance(result.exception, Exception), result.output
        return result

    return call


def test_a_sampler_is_used_by_check_train_resume_and_eval(call, tmp_path):
    assert "warning: ahead" not in call("check", "run.yaml").output
    assert "warning: ahead 1 without a sampler" in call("check", "run.yaml", "sampler=null").output
    output = call("train", "run.yaml").output
    output += call("resume", "run", "train.steps=6").output
    after = json.loads((tmp_path / "run" / "result.json").read_text())["after"]
    evaluated = call("eval", "run")
    metrics = dict(
        line.split()[:2] for line in evaluated.stdout.splitlines() if len(line.split()) > 1
    )
    assert float(metrics["reward"]) == pytest.approx(after["reward"], abs=1e-4)
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert "importance" in lines[2]
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert b"geheim-4711" not in written
    assert "geheim-4711" not in output + evaluated.output


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sampler=throwing:ForOther", "ForOther draws for Other, and the policy is a Thrower"),
        ("sampler=throwing:Other", "Other is a policy, and draws only for itself"),
        ("sampler.ulr=x", "did you mean 'url'?"),
        ("sampler=throwing:Engin", "did you mean"),
        ("sampler=engin", "sampler"),
        ("algorithm.importance=none", "train.ahead samples with older weights"),
    ],
)
@pytest.mark.parametrize("command", ["check", "train"])
def test_a_wrong_sampler_is_refused_before_the_run(call, tmp_path, command, override, message):
    result = call(command, "run.yaml", override)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
