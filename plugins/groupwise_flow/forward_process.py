"""ForwardProcess: a policy whose decisions are noised copies of the images that it drew.

For methods that need neither a path nor log-probs: the model is trained on (1 - sigma) x0 + sigma
noise of its own final latents x0, as a flow model is trained on data (arXiv:2210.02747), with a
loss that depends on rewards. So images are drawn by the ODE, as in use.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from groupwise.policy import Outputs
from groupwise.rollouts import LogProbs, Rollouts, Trajectory
from groupwise_flow.diffusion import DiffusionPolicy
from groupwise_flow.noising import LEVELS, NOISE, SEED, stratified, with_levels
from groupwise_flow.process.denoising import Denoised, Plan, without_noise
from groupwise_flow.settings import ForwardProcessSettings


class ForwardProcess(DiffusionPolicy):
    """Image models of diffusers (docs/models.md); decisions are noised final latents.

    Trajectories hold, for each rollout, its final `latents` [...] in CPU memory, and the `seed` it
    was drawn with; for each decision its noise level, `sigma`, and the seed of its `noise`. Levels
    are those of the steps of sampling, unless the algorithm draws others: `groupwise_flow.noising`.

    Outputs of a decision: `velocity` [b, t, ...], that the model predicts for `noised` [b, t, ...],
    and the only one with a gradient; `target_velocity` [b, t, ...], noise - clean, which it would
    predict best; `clean` [b, t, ...], the final latents; `sigma` [b, t]. So the clean latents that
    the model predicts are noised - sigma velocity. There are no log-probs.

    facts: `images`, the pictures as tensors.
    """

    provides = frozenset({"velocity", "target_velocity", "noised", "clean", "sigma"})
    unit = "noised images"
    Config: ClassVar[type[ForwardProcessSettings]] = ForwardProcessSettings
    config: ForwardProcessSettings

    def plan(self, seeds: Sequence[int], group_size: int) -> Plan:
        """No step but the first noise is random."""
        return without_noise(self.sigmas, len(seeds))

    def with_trajectory(
        self, rollouts: Rollouts, done: Denoised, plan: Plan, seeds: Sequence[int]
    ) -> Rollouts:
        kept: Trajectory = {"latents": list(done.latents.cpu()), SEED: torch.tensor(seeds)}
        rollouts = replace(rollouts, trajectory=kept)
        return with_levels(rollouts, stratified(rollouts, self._step, self.sigmas[:-1]), self._step)

    def forward(
        self, rollouts: Rollouts, decisions: slice = slice(None), outputs: Outputs | None = None
    ) -> LogProbs:
        """Those of `outputs`; the model is only run for `velocity`."""
        names = self.provides if outputs is None else outputs
        sigma = rollouts.tensor(LEVELS)[:, decisions].to(self.device)
        latents = torch.stack(list(rollouts.trajectory["latents"])).to(self.device)
        clean = latents.unsqueeze(1).expand(*sigma.shape, *latents.shape[1:])
        noise = self._noise(rollouts.tensor(NOISE)[:, decisions])
        level = sigma.view(*sigma.shape, *[1] * (latents.ndim - 1))
        noised = (1 - level) * clean + level * noise
        extra = {
            "target_velocity": noise - clean,
            "noised": noised,
            "clean": clean,
            "sigma": sigma,
        }
        if "velocity" in names:
            velocity = self.guided.velocities(rollouts.prompts, noised, sigma)
            extra["velocity"] = self.connected(velocity)
        return LogProbs(
            log_probs=None,
            extra={name: value for name, value in extra.items() if name in names},
        )

    def _noise(self, seeds: Tensor) -> Tensor:
        """[b, t, ...] standard normal, by seeds [b, t]; drawn on the CPU, as any device would."""
        noise = torch.empty(seeds.numel(), *self.adapter.latent_shape)
        for one, seed in zip(noise, seeds.flatten().tolist(), strict=True):
            one.normal_(generator=torch.Generator().manual_seed(seed))
        return noise.view(*seeds.shape, *noise.shape[1:]).to(self.device)
