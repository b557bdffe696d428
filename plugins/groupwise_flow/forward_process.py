"""ForwardProcess: a policy whose decisions are noised copies of the images that it drew.

For methods that need neither a path nor log-probs: the model is trained on (1 - sigma) x0 + sigma
noise of its own final latents x0, as a flow model is trained on data (arXiv:2210.02747), with a
loss that depends on rewards. So images are drawn by any sampler: by the ODE, as in use, or with
noise.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from groupwise.kit.section import mistake_at
from groupwise.policy import Outputs
from groupwise.rollouts import LogProbs, Rollouts, Trajectory
from groupwise_flow.diffusion import DiffusionPolicy
from groupwise_flow.effect import Effect
from groupwise_flow.noising import LEVELS, NOISE, SEED, stratified, with_levels
from groupwise_flow.process.denoising import Denoised, Plan, without_noise
from groupwise_flow.sde import ODE, Noise
from groupwise_flow.settings import Settings

POWERS = {"x0": 2, "sigma": 1, "velocity": 0}
"""By `likelihood`, the power of sigma that weighs the squared error of a velocity."""


class ForwardProcessSettings(Settings):
    """Of the policy whose decisions are noised copies of the final latents."""

    sde: Annotated[Literal["ode", "flow", "cps", "dance", "ddim"], Effect.DECISIONS] = Field(
        "ode",
        description="how images of training are drawn: without noise (ode), as in use, or with "
        "noise in every step but the last, by a formula of the policy `flow`",
    )
    noise_level: Annotated[float, Effect.DECISIONS] = Field(
        0.7, gt=0, description="scale of the noise of these steps; not for sde: ode"
    )
    decisions: Annotated[int, Effect.NOTHING] = Field(
        1,
        ge=1,
        description="noised copies of each image that an update trains on, each at a noise level "
        "of its own",
    )
    likelihood: Annotated[Literal["x0", "sigma", "velocity"], Effect.DECISIONS] = Field(
        "x0",
        description="weight of the squared error of a velocity in log-probs, which are the ELBO's: "
        "sigma^2 (x0: the error of the predicted clean latents), sigma, or 1 (velocity)",
    )

    @model_validator(mode="after")
    def _noise_has_an_effect(self) -> Self:
        if self.sde == "ode" and "noise_level" in self.model_fields_set:
            raise mistake_at(
                ("noise_level",), "it has no effect with sde: ode; set sde, or remove it"
            )
        return self

    @property
    def noise(self) -> Noise:
        return ODE if self.sde == "ode" else Noise(self.sde, self.noise_level)

    @property
    def max_decisions(self) -> int:
        return self.decisions

    @property
    def stored_latents(self) -> int:
        """The final latents."""
        return 1

    @property
    def sampling_latents(self) -> int:
        """The noise of each step."""
        return 0 if self.noise == ODE else self.steps - 1


class ForwardProcess(DiffusionPolicy):
    """Image models of diffusers (docs/models.md); decisions are noised final latents.

    Trajectories hold, for each rollout, its final `latents` [...] in CPU memory, and the `seed` it
    was drawn with; for each decision its noise level, `sigma`, and the seed of its `noise`. Levels
    are those of the steps of sampling, unless the algorithm draws others: `groupwise_flow.noising`.

    Outputs of a decision: `velocity` [b, t, ...], that the model predicts for `noised` [b, t, ...],
    and `target_velocity` [b, t, ...], noise - clean, which it would predict best; `clean`
    [b, t, ...], the final latents; `sigma` [b, t]. So the clean latents that the model predicts are
    noised - sigma velocity.

    `log_probs` [b, t] are what a decision adds to the evidence lower bound of the final latents,
    arXiv:2107.00630, up to a constant: -weight |velocity - target_velocity|^2, averaged over the
    latent's dimensions. With the weight sigma^2 (`likelihood: x0`) that is the squared error of the
    predicted clean latents. Gradients go through `velocity` and `log_probs`.

    facts: `pixels`, the pictures as tensors; of videos only for rewards that have it in their
    signature.
    """

    provides = frozenset({"log_probs", "velocity", "target_velocity", "noised", "clean", "sigma"})
    algorithms = ("nft", "awm", "elbo_grpo")
    unit = "noised images"
    samples_apart = True
    exact = False  # what is drawn has no log-probs; decisions are chosen afterwards
    Config: ClassVar[type[ForwardProcessSettings]] = ForwardProcessSettings
    config: ForwardProcessSettings

    def plan(self, group_seeds: Sequence[int], group_size: int) -> Plan:
        """With `sde: ode` no step but the first noise is random, else all but the last are."""
        config, count = self.config, len(group_seeds) * group_size
        if config.noise == ODE:
            return without_noise(self.sigmas, count)
        return Plan(
            sigmas=self.sigmas,
            first=torch.zeros(count, dtype=torch.int64),
            decisions=config.steps - 1,
            source=torch.arange(count),
            noise=config.noise,
            keeps_path=False,
        )

    def with_trajectory(
        self, rollouts: Rollouts, done: Denoised, plan: Plan, seeds: Sequence[int]
    ) -> Rollouts:
        kept: Trajectory = {"latents": list(done.latents.cpu()), SEED: torch.tensor(seeds)}
        rollouts = replace(rollouts, trajectory=kept)
        return with_levels(rollouts, stratified(rollouts, self._step, self.sigmas[:-1]), self._step)

    def forward(
        self, rollouts: Rollouts, decisions: slice = slice(None), outputs: Outputs | None = None
    ) -> LogProbs:
        """Those of `outputs`; the model is only run for `velocity` and `log_probs`."""
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
        log_probs = None
        if names & {"velocity", "log_probs"}:
            velocity = self.connected(self.guided.velocities(rollouts.prompts, noised, sigma))
            extra["velocity"] = velocity
            if "log_probs" in names:
                error = (velocity - extra["target_velocity"]).square().flatten(2).mean(dim=2)
                log_probs = -(sigma ** POWERS[self.config.likelihood]) * error
        return LogProbs(
            log_probs=log_probs,
            extra={name: value for name, value in extra.items() if name in names},
        )

    def _noise(self, seeds: Tensor) -> Tensor:
        """[b, t, ...] standard normal, by seeds [b, t]; drawn on the CPU, as any device would."""
        noise = torch.empty(seeds.numel(), *self.adapter.latent_shape)
        for one, seed in zip(noise, seeds.flatten().tolist(), strict=True):
            one.normal_(generator=torch.Generator().manual_seed(seed))
        return noise.view(*seeds.shape, *noise.shape[1:]).to(self.device)
