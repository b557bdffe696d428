"""Transitions: the Gaussians of decisions, computed from what sampling stores in trajectories."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from groupwise.rollouts import LogProbs, Rollouts
from groupwise_flow.model.sharding import largest
from groupwise_flow.model.versions import Versions
from groupwise_flow.passes.graphs import Graphs
from groupwise_flow.passes.guidance import Guided
from groupwise_flow.process.denoising import Denoised
from groupwise_flow.settings import FlowSettings

CONSTANT = -1
"""The version of unconditional velocities that are reused with any weights."""


def relative(sigmas: Tensor, config: FlowSettings) -> Tensor:
    """[2, steps]: how each step compares with those that can be decisions.

    First its std over the mean of theirs; then, with c = |d mean / d velocity| / std, c times the
    mean of their 1 / c. sigmas: [steps + 1], on the CPU.
    """
    one = sigmas.new_ones(len(sigmas) - 1, 1)
    # A mean is linear in sample and velocity: of a sample 0 and a velocity 1 it is the derivative.
    step = config.noise.move(one, 0 * one, sigmas[:-1], sigmas[1:])
    std, trained = step.std.flatten(), config.window.decisions(config.steps)
    slope = step.mean.flatten().abs() / std
    return torch.stack([std / std[trained].mean(), slope * (1 / slope[trained]).mean()])


class Transitions:
    """The denoising steps that are decisions: stored in sampling, scored in training.

    A rollout's trajectory holds `path` [decisions + 1, ...], its samples from the first decision
    on; `first`, the index of that decision among all denoising steps; and where unconditional
    velocities have no gradient `unconditional` [decisions, ...], these velocities, and `version`,
    the number of the weights that computed them. Paths and velocities are stored in CPU memory.
    With `keep_graph` it has what `Graphs` needs to find the passes of sampling.

    versions: of the trained weights; mesh: of a sharded model. In all methods sigmas [steps + 1]
    are the noise levels, and relative [2, steps] what `relative` returns, on the device.
    """

    def __init__(
        self, guided: Guided, config: FlowSettings, versions: Versions, mesh: DeviceMesh | None
    ) -> None:
        self.guided, self.config, self.versions, self.mesh = guided, config, versions, mesh
        self.graphs = Graphs(versions)

    def trajectory(self, done: Denoised, first: Tensor) -> Mapping[str, Tensor | Sequence[Tensor]]:
        """The trajectory of B rollouts; first: [B]."""
        trajectory: dict[str, Tensor | Sequence[Tensor]] = {
            "path": list(done.path.cpu()),
            "first": first.to(self.guided.device),
        }
        if self.config.keep_graph:
            trajectory |= self.graphs.keep(done.graphs, len(first))
        if done.unconditional is not None:
            trajectory["unconditional"] = list(done.unconditional.cpu())
            trajectory["version"] = [torch.tensor(self.versions.number)] * len(first)
        return trajectory

    def score(
        self, rollouts: Rollouts, decisions: slice, sigmas: Tensor, relative: Tensor
    ) -> LogProbs:
        """Log-probs [b, t] of these decisions, averaged over the latents' dimensions, and the
        extras `mean` [b, t, ...], and `std`, `interval`, `relative_std`, `relative_slope` [b, t].

        With `guidance_gradient: conditional` the unconditional velocities of sampling are reused
        until the first update changes the weights.
        """
        start, stop, _ = decisions.indices(rollouts.mask.shape[1])
        path = self._stack(rollouts, "path", slice(start, stop + 1))
        before, shape = path[:, :-1], (len(rollouts), stop - start)
        place = self._places(rollouts, slice(start, stop))
        sigma, after = sigmas[place], sigmas[place + 1]
        velocity = self.graphs.take(rollouts, range(start, stop))
        if velocity is None:
            velocity = self.guided.velocities(
                rollouts.prompts,
                before,
                sigma.view(shape),
                unconditional=self._known_unconditional(rollouts, slice(start, stop)),
            )
        step = self.config.noise.move(
            velocity.flatten(0, 1),
            before.flatten(0, 1),
            sigma,
            after,
            next_sample=path[:, 1:].flatten(0, 1),
        )
        extra = {
            "mean": step.mean.unflatten(0, shape),
            "std": step.std.flatten().view(shape),
            "interval": (sigma - after).view(shape),
            "relative_std": relative[0, place].view(shape),
            "relative_slope": relative[1, place].view(shape),
        }
        return LogProbs(log_probs=step.log_prob.view(shape), extra=extra)

    def with_constants(self, rollouts: Rollouts, sigmas: Tensor) -> Rollouts:
        """With `guidance_gradient: conditional`: the rollouts with the unconditional velocities of
        the present weights, which `score` reuses with any weights."""
        guidance = self.config.guidance_in_training
        negative = self.guided.negative(rollouts.prompts, guidance)
        if self.config.trains_unconditional or negative is None:
            return rollouts
        count, steps = rollouts.mask.shape
        with torch.no_grad():
            velocity, _ = self.guided.velocity(
                self._stack(rollouts, "path", slice(steps)).flatten(0, 1),
                sigmas[self._places(rollouts, slice(None))],
                negative.select(*self.guided.each(count, steps)),
                guidance,
            )
        constant = {
            "unconditional": list(velocity.unflatten(0, (count, steps)).cpu()),
            "version": [torch.tensor(CONSTANT)] * count,
        }
        return replace(rollouts, trajectory={**rollouts.trajectory, **constant})

    def _known_unconditional(self, rollouts: Rollouts, steps: slice) -> Tensor | None:
        """[b, t, ...] the unconditional velocities of sampling; None if none are kept, and once the
        weights have changed."""
        if "unconditional" not in rollouts.trajectory:
            return None
        known = (CONSTANT, self.versions.number)
        outdated = any(int(v) not in known for v in rollouts.trajectory["version"])
        # Each pass of a sharded model is a collective, so all processes reuse them, or none does.
        if any(largest([int(outdated)], self.mesh)):
            return None
        return self._stack(rollouts, "unconditional", steps)

    def _places(self, rollouts: Rollouts, steps: slice) -> Tensor:
        """[n] the index among all denoising steps of each of these decisions."""
        numbers = torch.arange(rollouts.mask.shape[1], device=self.guided.device)[steps]
        first = rollouts.tensor("first").to(self.guided.device)
        return (first.unsqueeze(1) + numbers).flatten()

    def _stack(self, rollouts: Rollouts, name: str, steps: slice) -> Tensor:
        rows = [row[steps] for row in rollouts.trajectory[name]]
        return torch.stack(rows).to(self.guided.device)
