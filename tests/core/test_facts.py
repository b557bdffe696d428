"""Facts that are tensors: plain rewards see them where the policy put them, and are called before
the next batch is sampled; then the tensors are only in CPU memory."""

import asyncio
import weakref
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from groupwise.algorithms.grpo import GRPO
from groupwise.environments.pool import Pool
from groupwise.prompts.draws import Draw
from groupwise.rewards import Reward
from groupwise.training.episode_sampler import EpisodeSampler
from groupwise.training.episodes import Episodes
from groupwise.training.sampling import Sampling


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
    sampling = Sampling(painter, painter, seed=0, batch=4)
    labels = ("one", "other")
    sampler = EpisodeSampler(Pool(), dict.fromkeys(labels, sampling), dict.fromkeys(labels, 2))
    sampler.begin(0)
    sampler.follow({}, 0)
    draws = [Draw(number, row) for number, row in enumerate(lab.rows()[:4])]
    work = Episodes.concat([*sampler.draw(draws)])
    assert len(work.judged) == 16
    assert {type(picture) for picture in work.judged.facts["picture"]} == {Tensor}
    assert set(painter.counts) == {0}
    assert not OnDevice.alive
