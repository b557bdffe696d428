"""Facts that are tensors: plain rewards see them where the policy put them, and are called before
the next batch is sampled; then the tensors are only in CPU memory."""

import asyncio
import json
import weakref
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from groupwise import train
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise.registry import installed
from groupwise.rewards import Reward
from groupwise.storage.samples import read_samples
from groupwise.testing import play_episodes


class OnDevice(Tensor):
    """A picture on a device, which is counted as long as it exists."""

    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()

    @staticmethod
    def drawn() -> "OnDevice":
        picture = torch.ones(3).as_subclass(OnDevice)
        OnDevice.alive.add(picture)
        return picture

    def cpu(self):
        return self.as_subclass(Tensor).clone()

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@pytest.fixture
def painter(lab):
    """A policy with pictures as facts; `counts`: how many exist when a batch is sampled."""

    class Painter(lab.Tabular):
        facts = frozenset({"completion_ids", "picture"})

        def __init__(self):
            super().__init__()
            self.counts = []

        def sample(self, *args, **options):
            self.counts.append(len(OnDevice.alive))
            rollouts = super().sample(*args, **options)
            pictures = [OnDevice.drawn() for _ in range(len(rollouts))]
            return replace(rollouts, facts={**rollouts.facts, "picture": pictures})

    OnDevice.alive.clear()
    return Painter()


def rewards(seen):
    def plain(completions, picture):
        seen["plain"].update(map(type, picture))
        return [float(len(text)) for text in completions]

    async def slow(completions, picture):
        await asyncio.sleep(0.01)
        seen["slow"].update(map(type, picture))
        return [float(value.sum()) for value in picture]

    return [Reward(name="plain", function=plain), Reward(name="slow", function=slow)]


def test_the_pictures_of_one_batch_at_a_time_are_on_the_device(lab, painter):
    seen = {"plain": set(), "slow": set()}
    trainer = lab.trainer(painter, reward=rewards(seen), sample_batch=4, steps=2)
    metrics = lab.step(trainer)
    assert metrics["rewards/slow"] == 3.0
    assert painter.counts == [0] * 4
    assert seen == {"plain": {OnDevice}, "slow": {Tensor}}
    scored = trainer.experience.next(trainer.state)
    assert {type(picture) for picture in scored.rollouts.facts["picture"]} == {Tensor}
    assert not OnDevice.alive


def test_the_pictures_of_one_batch_of_an_evaluation_are_on_the_device(lab, painter):
    seen = {"plain": set(), "slow": set()}
    evaluation = {"prompts": 3, "samples": 2}
    trainer = lab.trainer(
        painter, reward=rewards(seen), sample_batch=2, evaluation=evaluation, held_out=0.8
    )
    assert trainer.evaluate().metrics["rewards/slow"] == 3.0
    assert painter.counts == [0] * 5
    assert seen == {"plain": {OnDevice}, "slow": {Tensor}}


def test_pictures_sampled_ahead_wait_for_the_update_in_cpu_memory(lab, painter):
    seen = {"plain": set(), "slow": set()}
    grpo = GRPO(GRPO.Config(importance="token"))
    trainer = lab.trainer(
        painter, grpo, rewards(seen), sample_batch=4, steps=3, ahead=1, groups_per_step=2
    )
    alive = []
    learn = trainer.learn
    trainer.learn = lambda scored: alive.append(len(OnDevice.alive)) or learn(scored)
    assert lab.fit(trainer)
    assert alive == [0] * 3
    assert len(painter.counts) > 3
    assert set(painter.counts) == {0}


def test_pictures_of_a_pool_wait_for_the_other_policies_in_cpu_memory(lab, painter):
    pool = installed().load("environments", "pool")()
    work = play_episodes(pool, {"one": painter, "other": painter}, lab.rows()[:4], size=2, batch=4)
    assert len(work.judged) == 16
    assert {type(picture) for picture in work.judged.facts["picture"]} == {Tensor}
    assert set(painter.counts) == {0}
    assert not OnDevice.alive


# ---- facts of evaluations


@pytest.fixture
def tool_user(lab):
    class ToolUser(lab.Tabular):
        facts = frozenset({"completion_ids", "calls", "ones", "environments"})
        optional_facts = frozenset({"trace"})
        logged = frozenset({"ones"})
        shown = frozenset({"calls", "trace"})

        asked_for = frozenset()

        def prepare(self, *, outputs, facts):
            self.asked_for = facts

        def sample(self, *args, **options):
            rollouts = super().sample(*args, **options)
            ids = rollouts.facts["completion_ids"]
            facts = {
                **rollouts.facts,
                "calls": [[{"tool": "add", "symbols": symbols}] for symbols in ids],
                "ones": [symbols.count(1) / len(symbols) for symbols in ids],
                "environments": [Environment(symbols) for symbols in ids],
            }
            if "trace" in self.asked_for:
                facts["trace"] = [torch.tensor(symbols) for symbols in ids]
            return replace(rollouts, facts=facts)

    return ToolUser()


class Environment:
    """A live environment, as TRL's `environment_factory` makes one for each completion."""

    def __init__(self, symbols):
        self.solved = float(symbols[-1] == 0)


def solves(completions, environments, **columns):
    """A reward of TRL's form for environments."""
    return [environment.solved for environment in environments]


def evaluated(policy, lab, folder, reward=solves):
    rows = {"name": lab.rows(), "held_out": 0.5}
    settings = {"groups_per_step": 2, "group_size": 2, "steps": 2}
    evaluation = {"prompts": 3, "samples": 4, "every": 1}
    return train(
        policy=policy,
        prompts=rows,
        rewards=[reward],
        train=settings,
        evaluation=evaluation,
        output=folder,
        quiet=True,
    )


def test_a_fact_named_environments_reaches_a_reward_by_name(lab, tmp_path, tool_user):
    evaluated(tool_user, lab, tmp_path / "run")
    for sample in read_samples(tmp_path / "run/samples/before.jsonl"):
        assert sample["rewards"]["solves"] == float(sample["completion"].endswith("0"))


def test_shown_facts_are_in_samples_and_in_the_report(lab, tmp_path, tool_user):
    evaluated(tool_user, lab, tmp_path / "run")
    for sample in read_samples(tmp_path / "run/samples/after.jsonl"):
        symbols = [int(symbol) for symbol in sample["completion"]]
        assert sample["shown"] == {
            "calls": [{"tool": "add", "symbols": symbols}],
            "trace": symbols,
        }
    page = (tmp_path / "run/report.html").read_text()
    assert "<small>calls</small>" in page
    assert "&quot;tool&quot;: &quot;add&quot;" in page


def test_texts_that_a_reward_logs_are_shown_and_its_other_values_recorded(lab, tmp_path):
    def judged(completions, log_extra, **columns):
        log_extra(
            "why", [f"because <{text[-1]}>" if text[-1] == "0" else None for text in completions]
        )
        log_extra("symbols", [len(text) for text in completions])
        return [float(text[-1] != "0") for text in completions]

    evaluated(lab.Tabular(), lab, tmp_path / "run", judged)
    samples = read_samples(tmp_path / "run/samples/after.jsonl")
    assert len({sample["completion"][-1] == "0" for sample in samples}) == 2
    for sample in samples:
        text = sample["completion"]
        wrong = text[-1] == "0"
        assert sample.get("shown") == ({"why": "because <0>"} if wrong else None)
        assert sample["extra"] == {**({} if wrong else {"why": None}), "symbols": len(text)}
    page = (tmp_path / "run/report.html").read_text()
    assert "<small>why</small>\nbecause &lt;0&gt;" in page


def test_logged_facts_are_means_over_held_out_decisions(lab, tmp_path, tool_user):
    result = evaluated(tool_user, lab, tmp_path / "run")
    samples = read_samples(tmp_path / "run/samples/after.jsonl")
    whole = "".join(sample["completion"] for sample in samples if not sample["greedy"])
    assert result.after["ones"] == pytest.approx(whole.count("1") / len(whole))
    rows = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert all("evaluation/ones" in row for row in rows if "evaluation/reward" in row)


def test_each_policy_of_a_pool_logs_and_shows_its_own_facts(lab, tmp_path, tool_user):
    train(
        environment="pool",
        players=[
            {"label": "one", "policy": tool_user},
            {"label": "two", "policy": lab.Tabular()},
        ],
        prompts={"name": lab.rows(), "held_out": 0.5},
        rewards=[lab.ones],
        train={"groups_per_step": 2, "group_size": 4, "steps": 1},
        evaluation={"prompts": 2},
        output=tmp_path / "run",
        quiet=True,
    )
    for sample in read_samples(tmp_path / "run/samples/after.jsonl"):
        assert ("shown" in sample) == ("logged" in sample) == (sample["learner"] == "one")


def test_a_shown_fact_that_the_policy_lacks_is_refused(lab, tmp_path):
    class Misspelt(lab.Tabular):
        shown = frozenset({"completion_id"})

    with pytest.raises(UserError, match="'completion_id' in its `shown` is not among its facts"):
        evaluated(Misspelt(), lab, tmp_path / "run")
