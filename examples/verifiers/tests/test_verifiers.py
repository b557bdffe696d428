"""verifiers 0.4 as it is installed: its harness, environments and rewards, and the run's tokens."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from groupwise_verifiers.environment import Verifiers
from groupwise_verifiers.tasks import LoadedTasks, Tasks

import groupwise
from groupwise.kit.errors import UserError
from groupwise.testing import play_episodes
from groupwise_agents.rewards import environment_reward
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

MODEL = Path(__file__).parents[2] / "arithmetic" / "base"
TASKSET = {"id": "sums_taskset"}
AGENT = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
COLUMNS = ("reward", "right", "length")


def rows(count):
    return [*Tasks(Tasks.Config(taskset=TASKSET, count=count))]


def environment(**options):
    env = {"taskset": TASKSET, "agent": AGENT, **options}
    return Verifiers(Verifiers.Config(env=env, columns=COLUMNS))


def policy():
    return LanguageModel(Settings(model=str(MODEL), max_new_tokens=8))


def check(episodes, count):
    """The rewards and metrics of verifiers are those of the completions that the run has."""
    judged = episodes.judged
    assert not episodes.failures
    assert len(judged) == count
    for completion, prompt, *own in zip(
        judged.completions, judged.prompts, *(judged.facts[name] for name in COLUMNS), strict=True
    ):
        text = completion[-1]["content"]
        right = float(prompt["answer"] in text)
        assert own == [2 * right, right, len(text)]


def test_an_agent_of_its_null_harness():
    model = policy()
    model.place(torch.device("cpu"))
    episodes = play_episodes(environment(), {"policy": model}, rows(2), size=2)
    check(episodes, 4)
    assert episodes.judged.facts["agent"] == ["agent"] * 4
    rollouts = episodes.rollouts("policy")
    with torch.no_grad():
        gap = (model(rollouts).log_probs - rollouts.sampler_log_probs).abs()
    assert float(gap[rollouts.mask].max()) < 1e-4


def test_its_environment_best_of_n_has_a_rollout_for_each_attempt():
    model = policy()
    model.place(torch.device("cpu"))
    episodes = play_episodes(environment(id="best_of_n", n=2), {"policy": model}, rows(1), size=2)
    check(episodes, 4)
    assert len(episodes.rollouts("policy")) == 4


def test_it_is_trained(tmp_path):
    result = groupwise.train(
        policy=policy(),
        environment=environment(),
        prompts=rows(2),
        rewards=[environment_reward],
        train={"steps": 1, "groups_per_step": 1, "group_size": 3},
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
    )
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    (step,) = [step for step in map(json.loads, lines) if "reward" in step]
    assert step["failed"] == 0
    assert step["environment/turns"] == 1


def test_a_taskset_that_is_not_installed():
    with pytest.raises(UserError, match="'no_such_taskset' not found"):
        Tasks(Tasks.Config(taskset={"id": "no_such_taskset"}))


def test_servers_of_tools_that_were_cancelled(monkeypatch):
    @asynccontextmanager
    async def cancelled():
        raise asyncio.CancelledError
        yield

    played = environment()
    monkeypatch.setattr(played.env, "serving", cancelled)
    with pytest.raises(UserError, match="do not run: they were cancelled"):
        asyncio.run(played.run(None, rows(1)[0]))


@pytest.mark.parametrize("places", [(5, 5, 2, 9, 0), (0, 1, 2), (9, 0)])
def test_tasks_are_found_in_any_order(places):
    tasks = LoadedTasks(SimpleNamespace(taskset=range(100)))
    assert [tasks[place] for place in places] == [*places]
