"""The world: a batch of point masses on a plane with friction, pushed by the controller."""

from dataclasses import dataclass

import torch
from torch import Tensor

STEP = 0.1
"""Seconds between two pushes."""
FRICTION = 0.5
"""Share of the velocity lost per second."""
STRENGTH = 4.0
"""Acceleration by a push of 1, the strongest one."""
ARENA = 1.0
"""Half the side of the square that the mass must not leave."""
RADIUS = 0.1
"""Distance from the goal at which the mass has arrived."""


@dataclass(frozen=True, kw_only=True)
class World:
    """position, velocity, goal: [B, 2]."""

    position: Tensor
    velocity: Tensor
    goal: Tensor

    @property
    def observations(self) -> Tensor:
        """[B, 6]: the network's input: goal - position, velocity, position."""
        return torch.cat([self.goal - self.position, self.velocity, self.position], dim=1)

    @property
    def arrived(self) -> Tensor:
        """[B] bool: at the goal."""
        return (self.goal - self.position).square().sum(dim=1) <= RADIUS**2

    @property
    def lost(self) -> Tensor:
        """[B] bool: outside the arena."""
        return (self.position.abs() > ARENA).any(dim=1)

    def push(self, actions: Tensor) -> "World":
        """The world one step later. Actions [B, 2] are clamped to [-1, 1]."""
        force = STRENGTH * actions.clamp(-1.0, 1.0)
        velocity = self.velocity + STEP * (force - FRICTION * self.velocity)
        return World(position=self.position + STEP * velocity, velocity=velocity, goal=self.goal)
