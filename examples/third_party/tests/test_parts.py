"""Unit tests of policy, prompts, rewards, algorithm and callback."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from groupwise_controller.algorithm import Reinforce
from groupwise_controller.callback import ExplorationLog
from groupwise_controller.policy import Controller
from groupwise_controller.prompts import Targets
from groupwise_controller.rewards import SmoothControl, arrives
from groupwise_controller.world import ARENA, RADIUS, World
from torch import nn

from groupwise import LogProbs, Rollouts
from groupwise.rewards import Scores

Rows = list[dict[str, Any]]


def sampled(policy: Controller, rows: Rows, **options: Any) -> Rollouts:
    with torch.no_grad():
        return policy.sample(rows, group_size=4, seeds=list(range(4 * len(rows))), **options)


def test_log_probs_are_the_normal_density(policy: Controller, rows: Rows) -> None:
    """Against the formula in float64, from the trajectory."""
    policy.double()
    rollouts = sampled(policy, rows)
    actions, observations = rollouts.trajectory["actions"], rollouts.trajectory["observations"]
    std = policy.log_std.exp()
    z = (actions - policy.network(observations)) / std
    density = (-z.square() / 2 - std.log() - math.log(2 * math.pi) / 2).sum(dim=-1)
    answer = policy(rollouts)
    torch.testing.assert_close(answer.log_probs, density)
    entropy = (std.log() + (1 + math.log(2 * math.pi)) / 2).sum()
    torch.testing.assert_close(answer.entropy, entropy.expand_as(density))


def test_greedy_takes_the_mean(policy: Controller, rows: Rows) -> None:
    rollouts = sampled(policy, rows, purpose="greedy")
    mean = policy.network(rollouts.trajectory["observations"])
    torch.testing.assert_close(rollouts.trajectory["actions"], mean)
    torch.testing.assert_close(*(rollouts.trajectory["actions"][row] for row in (0, 3)))


def test_mask_and_truncated_tell_how_a_rollout_ended(policy: Controller, rows: Rows) -> None:
    rollouts = sampled(policy, rows)
    assert rollouts.groups.tolist() == [g for g in range(len(rows)) for _ in range(4)]
    assert len(rollouts.lengths.unique()) > 3
    assert rollouts.truncated.any()
    for number, completion in enumerate(rollouts.completions):
        length = int(rollouts.lengths[number])
        assert rollouts.mask[number].tolist() == [t < length for t in range(rollouts.mask.shape[1])]
        assert (len(completion["pushes"]), len(completion["path"])) == (length, length + 1)
        ended = [
            math.dist(point, rollouts.prompts[number]["goal"]) <= RADIUS
            or max(map(abs, point)) > ARENA
            for point in completion["path"][1:]
        ]
        assert not any(ended[:-1])
        assert ended[-1] != bool(rollouts.truncated[number])
        assert ended[-1] or length == policy.max_decisions


def test_targets_are_functions_of_seed_and_index() -> None:
    one, again, other = (Targets(Targets.Config(size=100, seed=seed)) for seed in (1, 1, 2))
    assert len(one) == 100
    assert one[7] == again[7] != other[7]
    assert one[7] != one[8]
    assert set(one[0]) == {"prompt", "start", "goal"}


def test_arrives() -> None:
    path = {"path": [[0.0, 0.0], [0.5, 0.0]], "pushes": [[1.0, 0.0]]}
    goals = [[0.5, 0.05], [1.0, 0.0], [-1.0, 0.0]]
    rewards = arrives([path] * 3, [[0.0, 0.0]] * 3, goals)
    assert rewards == pytest.approx([1.0, 0.25, 0.0])
    assert arrives([path], [[0.0, 0.0]], [[1.0, 0.0]], partial=0.0) == [0.0]


def test_smooth_control() -> None:
    pushes = [[[1.0, 0.0]] * 3, [[1.0, 0.0], [0.5, 0.0]], [[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0]]]
    completions = [{"path": [], "pushes": each} for each in pushes]
    assert SmoothControl()(completions) == [1.0, 0.5, 0.0, None]
    assert SmoothControl(SmoothControl.Config(tolerance=4.0))(completions)[2] == 0.5


def test_a_push_is_bounded_and_slows_down() -> None:
    still = torch.zeros(1, 2)
    world = World(position=still, velocity=still, goal=torch.ones(1, 2))
    strong, stronger = world.push(torch.full((1, 2), 1.0)), world.push(torch.full((1, 2), 9.0))
    assert torch.equal(strong.position, stronger.position)
    assert (strong.push(still).velocity < strong.velocity).all()


def scored(values: list[float], groups: list[int]) -> tuple[Scores, Rollouts]:
    size = len(values)
    scores = Scores(
        names=("r",),
        weights=(1.0,),
        values=torch.tensor(values, dtype=torch.float64).unsqueeze(1),
        failed=torch.zeros(size, dtype=torch.bool),
    )
    return scores, Rollouts(
        prompts=[{"prompt": "x"}] * size,
        completions=[None] * size,
        groups=torch.tensor(groups),
        mask=torch.tensor([[True, True, number % 2 == 0] for number in range(size)]),
        truncated=torch.zeros(size, dtype=torch.bool),
    )


def test_reinforce_leaves_each_rollout_out_of_its_baseline() -> None:
    values = [1.0, 0.0, 5.0, 2.0, 2.0, math.nan, 6.0]
    targets = Reinforce().targets(*scored(values, [0, 0, 0, 1, 1, 1, 1]), {})
    expected = [1 - 5 / 2, 0 - 6 / 2, 5 - 1 / 2, 2 - 8 / 2, 2 - 8 / 2, 0.0, 6 - 4 / 2]
    assert targets["advantages"].tolist() == pytest.approx(expected)


def test_reinforce_gradient_is_that_of_the_log_prob_of_the_rollout() -> None:
    scores, rollouts = scored([1.0, 0.0, 0.0, 3.0], [0, 0, 1, 1])
    log_probs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    algorithm = Reinforce()
    batch = {
        **algorithm.targets(scores, rollouts, {}),
        "old_log_probs": log_probs.detach() - 1.0,
        "mask": rollouts.mask,
    }
    algorithm.loss(LogProbs(log_probs=log_probs), batch).sum().backward()
    expected = -torch.tensor([1.0, -1.0, -3.0, 3.0]).unsqueeze(1) * rollouts.mask / 4
    torch.testing.assert_close(log_probs.grad, expected)


def test_exploration_log(tmp_path: Path) -> None:
    log = ExplorationLog(ExplorationLog.Config(file=tmp_path / "deep" / "log.csv"))
    policy = Controller(Controller.Config(std=0.5))
    log.on_start(policy)
    log.on_step(1, {})
    with torch.no_grad():
        nn.init.zeros_(policy.log_std)
    log.on_step(2, {})
    lines = log.file.read_text(encoding="utf-8").splitlines()
    assert lines == ["step,std_x,std_y", "1,0.5000,0.5000", "2,1.0000,1.0000"]
