"""A group has one window and one first noise, in whatever calls its pictures are drawn."""

import asyncio
from collections import defaultdict

import pytest
import torch

import groupwise
from groupwise.environment import Environment
from groupwise.learning.learner import Learner
from groupwise.record.gather import gather
from groupwise_flow.policy import FlowPolicy

PROMPTS = [{"prompt": f"{letter} cat"} for letter in "abcdefghijkl"]


class Text(Environment):
    """Calls the painter with a text, not with the row."""

    async def play(self, row, players):
        (painter,) = players.values()
        await painter(row["prompt"])


class Differing(Environment):
    """Paints another prompt in each episode."""

    played = 0

    async def play(self, row, players):
        (painter,) = players.values()
        self.played += 1
        await painter(f"{row['prompt']} {'abcdefgh'[self.played % 8]}")


class Uneven(Environment):
    """Paints a second picture in some episodes."""

    played = 0

    async def play(self, row, players):
        (painter,) = players.values()
        first, self.played = await painter(row), self.played + 1
        if self.played % 3:
            await painter(f"{row['prompt']} red", after=first)


class Together(Environment):
    """Paints two pictures at the same time."""

    async def play(self, row, players):
        (painter,) = players.values()
        await asyncio.gather(painter(row), painter(row["prompt"]))


class Candidates(Environment):
    """Paints a group, and one more picture."""

    async def play(self, row, players):
        (painter,) = players.values()
        first, *_ = await painter.group(row)
        await painter(row["prompt"], after=first)


@pytest.fixture
def trained(lab, tmp_path, monkeypatch):
    """trained(environment, **policy) runs a step: by group, the trajectories of its pictures."""

    def run(environment, **options):
        groups, learn = defaultdict(list), Learner.learn

        def noting(self, sampled, *arguments, **named):
            rollouts = gather(sampled)
            columns = (rollouts.groups, rollouts.tensor("first"), rollouts.trajectory["path"])
            for group, first, path in zip(*columns, strict=True):
                groups[int(group)].append((int(first), path[0]))
            return learn(self, sampled, *arguments, **named)

        monkeypatch.setattr(Learner, "learn", noting)
        groupwise.train(
            policy=FlowPolicy(lab.settings(steps=6, evaluation_steps=2, **options)),
            environment=environment,
            algorithm="flow_grpo",
            prompts=PROMPTS,
            rewards=[lab.redness],
            train={"groups_per_step": 4, "group_size": 4, "steps": 1},
            evaluation={"prompts": 0},
            output=str(tmp_path / "run"),
            quiet=True,
        )
        return groups

    return run


KINDS = [Text, Differing, Uneven, Together, Candidates]


@pytest.mark.parametrize("environment", KINDS)
def test_a_group_has_one_window(trained, environment):
    window = {"kind": "random", "size": 1, "until": 1.0}
    groups = trained(environment(), window=window)
    assert max(map(len, groups.values())) >= 4
    starts = {group: {first for first, _ in pictures} for group, pictures in groups.items()}
    assert {len(each) for each in starts.values()} == {1}
    assert len(set.union(*starts.values())) > 1  # groups have different ones


@pytest.mark.parametrize("environment", KINDS)
def test_a_group_has_one_first_noise(trained, environment):
    groups = trained(environment(), shared_noise=True)
    noises = [torch.stack([noise for _, noise in pictures]) for pictures in groups.values()]
    for noise in noises:
        assert torch.equal(noise, noise[:1].expand_as(noise))
    assert len(torch.stack([noise[0] for noise in noises]).unique(dim=0)) == len(noises)


def test_pictures_that_are_drawn_one_by_one_are_those_that_are_drawn_together(lab):
    window = {"kind": "random", "size": 1, "until": 1.0}
    policy = lab.policy(steps=8, window=window, shared_noise=True)
    together = policy.sample(lab.rows, group_size=3, seeds=range(6))
    alone = policy.sample(
        [row for row in lab.rows for _ in range(3)],
        group_size=1,
        seeds=range(6),
        group_seeds=[0, 0, 0, 3, 3, 3],
    )
    assert torch.equal(together.tensor("first"), alone.tensor("first"))
    torch.testing.assert_close(lab.images_of(together), lab.images_of(alone))
