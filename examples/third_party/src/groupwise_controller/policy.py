"""The policy: a Gaussian controller whose decisions are pushes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from groupwise import LogProbs, Policy, Rollouts
from groupwise.sampler import Purpose
from groupwise_controller.world import World

LOG_2PI = math.log(2 * math.pi)


class Controller(Policy):
    """action ~ Normal(network(observation), std), with a learned std, equal for all observations.

    A rollout ends when the mass reaches the goal or leaves the arena, and is truncated after
    `horizon` pushes. A completion, for rewards, is a dict of plain numbers:

        {"path": [[x, y], ...], "pushes": [[x, y], ...]}

    where `path` has one point more than `pushes`.
    """

    provides = frozenset({"log_probs", "entropy"})
    facts = frozenset({"entropy"})
    logged = frozenset({"entropy"})
    unit = "pushes"
    exact = True

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        horizon: int = Field(default=40, ge=1, description="the most pushes in a rollout")
        hidden: int = Field(default=32, ge=1, description="width of both hidden layers")
        std: float = Field(default=0.5, gt=0, description="std of the actions before training")
        seed: int = Field(default=0, ge=0, description="seed of the network's initial weights")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        config = config or self.Config()
        self.max_decisions = config.horizon
        # In a fork of the RNG: initial weights must not depend on earlier random numbers.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.network = nn.Sequential(
                nn.Linear(6, config.hidden),
                nn.Tanh(),
                nn.Linear(config.hidden, config.hidden),
                nn.Tanh(),
                nn.Linear(config.hidden, 2),
            )
        self.log_std = nn.Parameter(torch.full((2,), config.std).log())

    def log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        """Log-prob [...] of actions [..., 2]; one decision is both components of a push.

        Sampling and training both use this, so the ratio is 1 until the weights change.
        """
        z = (actions - mean) / self.log_std.exp()
        return -(z.square() / 2 + self.log_std + LOG_2PI / 2).sum(dim=-1)

    @property
    def entropy(self) -> Tensor:
        """[] in nats; equal for all actions, since their std is."""
        return (self.log_std + (1 + LOG_2PI) / 2).sum()

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        assert self.max_decisions is not None
        rows = [row for row in prompts for _ in range(group_size)]
        device = self.log_std.device
        world = _start(rows, like=self.log_std)
        noise = _noise(seeds, self.max_decisions, greedy=purpose == "greedy").to(self.log_std)
        running = torch.ones(len(rows), dtype=torch.bool, device=device)
        mask, observations, actions, log_probs, path = [], [], [], [], [world.position]
        for decision in range(self.max_decisions):
            # Finished rollouts are simulated on, with mask False.
            mask.append(running)
            observations.append(world.observations)
            mean = self.network(world.observations)
            action = mean + self.log_std.exp() * noise[:, decision]
            actions.append(action)
            log_probs.append(self.log_prob(mean, action))
            world = world.push(action)
            path.append(world.position)
            running = running & ~world.arrived & ~world.lost
            if not running.any():
                break
        taken, pushes = torch.stack(mask, dim=1), torch.stack(actions, dim=1)
        return Rollouts(
            prompts=rows,
            completions=_completions(torch.stack(path, dim=1), pushes, taken),
            groups=torch.arange(len(prompts), device=device).repeat_interleave(group_size),
            mask=taken,
            truncated=running,
            sampler_log_probs=torch.stack(log_probs, dim=1),
            facts={"entropy": [float(self.entropy)] * len(rows)},
            trajectory={"observations": torch.stack(observations, dim=1), "actions": pushes},
        )

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        """All decisions at once: observations are in the trajectory, so nothing is simulated."""
        observations, actions = (
            rollouts.tensor(name)[:, decisions] for name in ("observations", "actions")
        )
        log_probs = self.log_prob(self.network(observations), actions)
        return LogProbs(log_probs=log_probs, entropy=self.entropy.expand_as(log_probs))


def _start(rows: Sequence[Mapping[str, Any]], *, like: Tensor) -> World:
    position = like.new_tensor([row["start"] for row in rows])
    goal = like.new_tensor([row["goal"] for row in rows])
    return World(position=position, velocity=torch.zeros_like(position), goal=goal)


def _noise(seeds: Sequence[int], horizon: int, *, greedy: bool) -> Tensor:
    """[B, T, 2] standard normal, one generator per rollout; on the CPU, so the same everywhere."""
    if greedy:
        return torch.zeros(len(seeds), horizon, 2)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return torch.stack([torch.randn(horizon, 2, generator=each) for each in generators])


def _completions(path: Tensor, pushes: Tensor, mask: Tensor) -> list[dict[str, Any]]:
    lengths = mask.sum(dim=1).tolist()
    return [
        {"path": points[: length + 1], "pushes": actions[:length]}
        for points, actions, length in zip(path.tolist(), pushes.tolist(), lengths, strict=True)
    ]
