"""Groupwise's own checks of a policy, an algorithm and rewards, on this package's parts."""

from typing import Any

import torch
from groupwise_controller.algorithm import Reinforce
from groupwise_controller.policy import Controller
from groupwise_controller.rewards import SmoothControl, arrives

from groupwise import testing

Rows = list[dict[str, Any]]


def test_policy(policy: Controller, rows: Rows) -> None:
    testing.check_policy(policy, rows)


def test_algorithm() -> None:
    testing.check_algorithm(Reinforce())


def test_rewards(policy: Controller, rows: Rows) -> None:
    with torch.no_grad():
        rollouts = policy.sample(rows, group_size=2, seeds=list(range(2 * len(rows))))
    for reward in (arrives, SmoothControl()):
        testing.check_reward(reward, rows, rollouts.completions, group_size=2)
