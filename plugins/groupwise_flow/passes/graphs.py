"""Graphs: passes of sampling that are kept with their graph, for the first update of a step."""

import time
from collections.abc import Sequence
from itertools import count as counted

import torch
from torch import Tensor

from groupwise.rollouts import Rollouts
from groupwise_flow.model.versions import Versions

PASS, PLACE = "pass", "place"
"""Columns of a trajectory: the number of the pass that drew a rollout, and its place in it."""
NOT_KEPT = -1
"""The pass of rollouts whose graph is not kept, since one beside them is not finite."""


class Graphs:
    """Velocities of decisions as sampling computed them, with their graph, each for one use.

    While the weights are those of sampling, an update needs no forward pass: the gradient of its
    loss goes through these graphs. A graph is freed by its first backward pass, so it is handed out
    once; whoever asks again computes the velocity anew, as for weights that have changed.

    Passes are numbered from the current time on, so that rollouts of an earlier step, or of before
    a resumption, do not find those of this one.
    """

    def __init__(self, versions: Versions) -> None:
        self.versions = versions
        self._numbers = counted(time.time_ns())
        self._passes: dict[int, dict[int, Tensor]] = {}
        self._version: int | None = None

    def clear(self) -> None:
        self._passes, self._version = {}, None

    def keep(self, velocities: Sequence[Sequence[Tensor]], count: int) -> dict[str, Tensor]:
        """Keep the velocities [n, ...] of each decision and each of its passes; the columns [B] by
        which `take` finds them, on the CPU.

        Without velocities there is nothing to find for these `count` rollouts.
        """
        if not velocities:
            return dict.fromkeys((PASS, PLACE), torch.full((count,), NOT_KEPT))
        if self._version != self.versions.number:
            self.clear()
            self._version = self.versions.number
        numbers, places = [], []
        for parts in zip(*velocities, strict=True):
            number = next(self._numbers)
            self._passes[number] = dict(enumerate(parts))
            numbers.append(torch.full((len(parts[0]),), number))
            places.append(torch.arange(len(parts[0])))
        return {PASS: torch.cat(numbers), PLACE: torch.cat(places)}

    def take(self, rollouts: Rollouts, decisions: range) -> Tensor | None:
        """[b, t, ...]: the kept velocities of rollouts of one pass; None if they are not there, or
        no gradient is wanted."""
        if not torch.is_grad_enabled() or not self.holds(rollouts):
            return None
        numbers = rollouts.tensor(PASS).unique().tolist()
        if len(numbers) != 1 or self._version != self.versions.number:
            return None
        kept, place = self._passes.get(numbers[0], {}), rollouts.tensor(PLACE)
        if any(decision not in kept for decision in decisions):
            return None
        velocities = [kept.pop(decision) for decision in decisions]
        return torch.stack([velocity[place.to(velocity.device)] for velocity in velocities], dim=1)

    def holds(self, rollouts: Rollouts) -> bool:
        """Whether the rollouts were drawn with graphs."""
        return PASS in rollouts.trajectory
