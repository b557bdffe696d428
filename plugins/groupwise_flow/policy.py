"""FlowPolicy: a policy over diffusers' flow-matching pipelines; its decisions are denoising steps.

Flow-GRPO, arXiv:2505.05470: the deterministic sampler is replaced by an SDE with the same
marginals, so that each step is drawn from a Gaussian and has a log-prob.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.device_mesh import DeviceMesh

from groupwise.kit.errors import UserError
from groupwise.policy import Microbatch, Outputs
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Purpose
from groupwise_flow.diffusion import DiffusionPolicy
from groupwise_flow.model.versions import Versions
from groupwise_flow.passes.graphs import PASS
from groupwise_flow.passes.guidance import PIXELS
from groupwise_flow.passes.rounding import Rounding
from groupwise_flow.passes.transitions import Transitions, relative
from groupwise_flow.process.denoising import Denoised, Plan
from groupwise_flow.settings import FlowSettings

LOG_PROBS = frozenset({"log_probs"})


class FlowPolicy(DiffusionPolicy):
    """Image models of diffusers (docs/models.md); decisions are denoising steps.

    Trajectories hold, for each rollout, its samples x from the first decision on; see
    `Transitions`.

    Extras of a decision, where the algorithm needs them: `mean` [b, t, ...] and `std` [b, t] of its
    Gaussian, and `interval` [b, t], sigma - sigma_next of the step. And how a step compares with
    all steps that can be decisions: `relative_std`, its std over the mean of theirs; and
    `relative_slope`, with c = |d mean / d velocity| / std, to which the gradient of a log-prob by
    the velocity is proportional, c times the mean of their 1 / c.

    facts: `pixels`, the pictures as tensors, of videos only for rewards that have it in their
    signature. `predictions`, only for rewards that have it in theirs: per rollout a CPU tensor
    [decisions + 1, 3, height, width] (of videos [decisions + 1, frames, 3, ...]), the pictures that
    the model predicts before its first decision and after each one. Decoding them costs
    decisions + 1 times as much as decoding the pictures. Empty at evaluation, where there are no
    decisions.

    In half precision `log_prob_error` is a metric of every step; see `Rounding`.
    """

    provides = frozenset({"log_probs", "mean", "std", "interval", "relative_std", "relative_slope"})
    algorithms = ("flow_grpo",)
    optional_facts = frozenset({PIXELS, "predictions"})
    diversity = "a higher noise_level"
    unit = "denoising steps"
    Config: ClassVar[type[FlowSettings]] = FlowSettings
    config: FlowSettings
    _sigmas: Tensor
    _relative: Tensor

    def __init__(self, config: FlowSettings) -> None:
        super().__init__(config)
        self.portable = not config.keep_graph
        # A group that shares its noise shares passes, too.
        self.samples_apart = self.portable and not config.shared_noise
        self.rounding = Rounding(config.precision)
        self.facts = self.facts | self.rounding.metrics  # type: ignore[misc]
        self.logged = self.rounding.metrics  # type: ignore[misc]

    def _load(self) -> None:
        super()._load()
        # Beside them on the device, since every copy to it waits.
        self.register_buffer("_sigmas", self.sigmas.clone(), persistent=False)
        steps = relative(self.sigmas, self.config)
        self.register_buffer("_relative", steps, persistent=False)
        self._weights_now = Versions(*self.adapter.models.values())
        self.transitions = Transitions(self.guided, self.config, self._weights_now, self.mesh)

    def shard(self, mesh: DeviceMesh) -> None:
        """As for other policies; not with `keep_graph`."""
        if self.config.keep_graph:
            raise UserError(
                "policy.keep_graph: a sharded model cannot keep the graph of sampling, since its "
                "blocks are gathered for each pass; remove it, or train.shard"
            )
        super().shard(mesh)

    def begin(self, step: int) -> None:
        super().begin(step)
        self.rounding.begin()
        self.transitions.graphs.clear()

    # ---- sampling

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
        group_seeds: Sequence[int] | None = None,
    ) -> Rollouts:
        """Images for text prompts; see `Policy.sample`. Only training steps are stochastic."""
        rollouts = super().sample(
            prompts, group_size=group_size, seeds=seeds, purpose=purpose, group_seeds=group_seeds
        )
        if purpose == "train":
            return rollouts
        facts = dict(rollouts.facts)
        if "predictions" in self._optional:
            none = torch.empty(0, *self.evaluated.adapter.decoded_shape)
            facts["predictions"] = [none] * len(rollouts)
        log_probs = torch.zeros(rollouts.mask.shape, device=self.device)
        return replace(rollouts, sampler_log_probs=log_probs, facts=facts)

    def plan(self, group_seeds: Sequence[int], group_size: int) -> Plan:
        """Decisions are in one window for all rollouts of a group, from the group's seed."""
        config, count = self.config, len(group_seeds) * group_size
        starts = config.window.starts(config.steps, group_seeds, self._step)
        own, shared = torch.arange(count), config.shared_noise
        return Plan(
            sigmas=self.sigmas,
            first=starts.repeat_interleave(group_size),
            decisions=config.max_decisions,
            source=own - own % group_size if shared else own,
            shared=[seed for seed in group_seeds for _ in range(group_size)] if shared else None,
            noise=config.noise,
            noisy_end=config.last_step == "noise",
            predicts="predictions" in self._optional,
            keeps_graph=config.keep_graph,
        )

    def with_trajectory(
        self, rollouts: Rollouts, done: Denoised, plan: Plan, seeds: Sequence[int]
    ) -> Rollouts:
        predictions: dict[str, Sequence[Any]] = {}
        if done.predicted is not None:
            decoded = self.guided.decode(done.predicted.flatten(0, 1))
            predictions["predictions"] = list(decoded.unflatten(0, done.predicted.shape[:2]))
        trained = self.config.window.trained(self.config.steps, seeds)
        rollouts = replace(
            rollouts,
            mask=trained.to(self.device),
            sampler_log_probs=done.log_probs,
            facts={**rollouts.facts, **predictions},
            trajectory=self.transitions.trajectory(done, plan.first),
        )
        return self.rounding.measured(rollouts, self._exact_log_probs)

    def _exact_log_probs(self, rollouts: Rollouts) -> Tensor:
        """[b, t] computed in float32, one decision at a time."""
        with self.guided.in_float32():
            parts = [
                self(rollouts, slice(number, number + 1), LOG_PROBS).log_probs
                for number in range(rollouts.mask.shape[1])
            ]
        return torch.cat([part for part in parts if part is not None], dim=1)

    # ---- log-probs

    def forward(
        self, rollouts: Rollouts, decisions: slice = slice(None), outputs: Outputs | None = None
    ) -> LogProbs:
        """Log-probs [b, t] of steps, averaged over the latents' dimensions, and the extras among
        `outputs`.

        With `guidance_gradient: conditional` the unconditional velocities of sampling are reused
        until the first update changes the weights.
        """
        step = self.transitions.score(rollouts, decisions, self._sigmas, self._relative)
        log_probs, extra = step.log_probs, step.extra
        if outputs is not None:
            extra = {name: value for name, value in extra.items() if name in outputs}
        assert log_probs is not None
        return LogProbs(log_probs=self.connected(log_probs), extra=extra)

    def microbatches(
        self, rollouts: Rollouts, budget: int, *, cut_decisions: bool
    ) -> Sequence[Microbatch]:
        """As for other policies, without decisions that are not trained on; with `keep_graph` each
        has rollouts of one pass of sampling."""
        if cut_decisions and self.config.window.share < 1:
            return self._trained_only(rollouts, budget)
        if PASS not in rollouts.trajectory:
            return super().microbatches(rollouts, budget, cut_decisions=cut_decisions)
        numbers = rollouts.tensor(PASS)
        parts: list[Microbatch] = []
        for number in numbers.unique().tolist():
            rows = (numbers == number).nonzero().flatten()
            some = super().microbatches(rollouts.select(rows), budget, cut_decisions=cut_decisions)
            parts += [(rows[chosen], decisions) for chosen, decisions in some]
        # In the order of other policies, in which gradients are summed.
        return sorted(parts, key=lambda part: part[1].start)

    def _trained_only(self, rollouts: Rollouts, budget: int) -> Sequence[Microbatch]:
        """One decision at a time of the rollouts that are trained on it."""
        most = max(1, min(budget, self.config.batch))
        return [
            (rows, slice(number, number + 1))
            for number, trained in enumerate(rollouts.mask.cpu().unbind(dim=1))
            for rows in trained.nonzero().flatten().split(most)
            if len(rows)
        ]

    def with_constants(self, rollouts: Rollouts) -> Rollouts:
        """With `guidance_gradient: conditional`: the rollouts with the unconditional velocities of
        the present weights, which `forward` reuses with any weights."""
        return self.transitions.with_constants(rollouts, self._sigmas)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """What sampling kept stays valid afterwards, since the weights are restored: unconditional
        velocities, and graphs, which autograd else refuses once a parameter was written to."""
        written = tuple(self.parameters()) if self.config.keep_graph else ()
        with self._weights_now.temporary(), _unsafe_preserve_version_counter(written):
            yield
