"""FlowPolicy: a policy over diffusers' flow-matching pipelines; its decisions are denoising steps.

Flow-GRPO, arXiv:2505.05470: the deterministic sampler is replaced by an SDE with the same
marginals, so that each step is drawn from a Gaussian and has a log-prob.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from groupwise.memory import Workload
from groupwise.policy import Microbatch, Outputs, Policy, Uncopied
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Purpose, products_are_exact
from groupwise.weights import kept_parameters
from groupwise_flow.estimates.memory import estimate, estimate_cpu
from groupwise_flow.files.card import card
from groupwise_flow.files.loading import check_shardable, load
from groupwise_flow.files.saving import save
from groupwise_flow.model.lora import adds_nothing
from groupwise_flow.model.unused_parameters import UnusedParameters
from groupwise_flow.model.versions import Versions
from groupwise_flow.passes.guidance import Guided
from groupwise_flow.passes.rounding import Rounding
from groupwise_flow.passes.sampling import failures, sample_latents
from groupwise_flow.passes.transitions import Transitions
from groupwise_flow.preflight import checked, examine
from groupwise_flow.process.denoising import Denoised
from groupwise_flow.process.schedules import levels
from groupwise_flow.settings import Settings

LOG_PROBS = frozenset({"log_probs"})


class FlowPolicy(Policy):
    """Image models of diffusers (Stable Diffusion 3, FLUX.1); decisions are denoising steps.

    Trajectories hold, for each rollout, its samples x from the first decision on; see
    `Transitions`.

    Extras of a decision, where the algorithm needs them: `mean` [b, t, ...] and `std` [b, t] of its
    Gaussian, and `interval` [b, t], sigma - sigma_next of the step.

    facts: `images`, the pictures as tensors; `predictions`, only for rewards that have it in their
    signature: per rollout a CPU tensor [decisions + 1, 3, height, width] (of videos [decisions + 1,
    frames, 3, ...]), the pictures that the model predicts before its first decision and after each
    one. Decoding them costs decisions + 1 times as much as decoding the pictures. Empty at
    evaluation, where there are no decisions.

    In half precision `log_prob_error` is a metric of every step; see `Rounding`.
    """

    provides = frozenset({"log_probs", "mean", "std", "interval"})
    facts = frozenset({"images"})
    optional_facts = frozenset({"predictions"})
    unit = "denoising steps"
    greedy = False
    Config: ClassVar[type[Settings]] = Settings
    _sigmas: Tensor

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config
        self.max_decisions = config.window.length(config.steps)
        self.notes: list[str] = []
        self.scale_loss = config.precision == "fp16"
        self.factored = config.lora is not None
        self.rounding = Rounding(config.precision)
        self.facts = self.facts | self.rounding.metrics  # type: ignore[misc]
        self.logged = self.rounding.metrics  # type: ignore[misc]
        self._optional: frozenset[str] = frozenset()
        self._unused = UnusedParameters()
        self._loaded = False
        self._step = 0

    def shard(self, mesh: DeviceMesh) -> None:
        """Shard the trained model among the processes; `place` then reads this process's shards.

        Text encoders and autoencoder stay whole on each process. Raises UserError for a model that
        cannot be sharded.
        """
        if self._loaded:
            raise ValueError("shard: call it before `place`, which has already read the weights")
        check_shardable(self.config)
        self.mesh = mesh

    def prepare(self, *, outputs: Outputs, facts: frozenset[str]) -> None:
        """Note the facts; all outputs come from the same models."""
        self._optional = facts

    def place(self, device: torch.device | str) -> None:
        """Load the weights and move them to the device; later calls only move them."""
        if not self._loaded:
            self._load()
        super().place(device)

    def _load(self) -> None:
        self.adapter = load(self.config, self.mesh)
        self.guided = Guided(self.adapter, self.config)
        away = self.guided.encoders.away
        for name, module in self.adapter.pipeline.components.items():
            if isinstance(module, nn.Module) and name not in away:
                self.add_module(name, module)  # so that all of them move to the device together
        self.sigmas = levels(self.adapter, self.config.steps)
        # Beside them on the device, since every copy to it waits.
        self.register_buffer("_sigmas", self.sigmas.clone(), persistent=False)
        self._weights_now = Versions(self.adapter.model)
        self.transitions = Transitions(self.guided, self._weights_now, self.mesh)
        self._loaded = True

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: with dropout, the log-probs of training would differ from those of
        sampling, and the ratio would not be 1."""
        return super().train(False)

    @property
    def device(self) -> torch.device:
        return self.guided.device

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """True in float32, where matrix products are in float32, too (no TF32)."""
        return self.config.precision == "float32" and products_are_exact()

    def begin(self, step: int) -> None:
        self._step = step
        self.rounding.begin()

    def check_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raise UserError for a prompt that is not a text or is too long for the encoders; with
        `long_prompts: skip` or `cut` add a note instead. With `encoders: cached` encode them all.
        """
        if self.config.encoders != "cached":
            self.notes += checked(self.guided, rows)
            return
        rows = list(rows)
        self.notes += checked(self.guided, rows)
        self.guided.cache(rows)

    def skips(self, row: Mapping[str, Any]) -> bool:
        """Whether the row is left out: its prompt is too long, with `long_prompts: skip`."""
        limit = self.guided.limit
        if self.config.long_prompts != "skip" or limit is None:
            return False
        return bool(limit.too_long([self.adapter.text(row)]))

    @classmethod
    def examine(cls, config: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """The errors and notes of a run's start, without loading any weights."""
        return examine(config, rows)

    @classmethod
    def least_rate(cls, config: Settings) -> float:
        """1e-5 for LoRA, whose adapters start at 0 and usually take 1e-5 to 1e-3."""
        return 0.0 if config.lora is None else 1e-5

    # ---- sampling

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        """Images for text prompts; see `Policy.sample`. Only training steps are stochastic."""
        training = purpose == "train"
        rows = [row for row in prompts for _ in range(group_size)]
        groups = torch.arange(len(prompts)).repeat_interleave(group_size)
        # All rollouts of a group have one window, from the group's first seed.
        starts = self.config.window.starts(self.config.steps, seeds[::group_size], self._step)
        first = starts[groups]
        sigmas = self.sigmas if training else levels(self.adapter, self.config.evaluation_steps)
        done = sample_latents(
            self.guided,
            rows,
            seeds,
            sigmas=sigmas,
            first=first,
            leaders=groups * group_size,
            training=training,
            predicts="predictions" in self._optional,
            mesh=self.mesh,
        )
        completions, images = self.guided.completions(done.latents)
        broken = done.broken | images.isnan().flatten(1).any(dim=1).cpu()
        if bool(broken.any()):
            images = images.nan_to_num()
        rollouts = Rollouts(
            prompts=rows,
            completions=completions,
            groups=groups.to(self.device),
            mask=torch.ones_like(done.log_probs, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool, device=self.device),
            sampler_log_probs=done.log_probs,
            failures=failures(broken, self.config.precision),
            facts={"images": list(images), **self._predictions(done, images)},
            trajectory=self.transitions.trajectory(done, first) if training else {},
        )
        return self.rounding.measured(rollouts, self._exact_log_probs) if training else rollouts

    def _predictions(self, done: Denoised, images: Tensor) -> dict[str, Sequence[Any]]:
        if "predictions" not in self._optional:
            return {}
        if done.predicted is None:
            return {"predictions": list(images.new_empty(len(images), 0, *images.shape[1:]).cpu())}
        clean = done.predicted
        decoded = self.guided.decode(clean.flatten(0, 1))
        return {"predictions": list(decoded.unflatten(0, clean.shape[:2]))}

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
        step = self.transitions.score(rollouts, decisions, self._sigmas)
        log_probs, extra = step.log_probs, step.extra
        if outputs is not None:
            extra = {name: value for name, value in extra.items() if name in outputs}
        assert log_probs is not None
        if self.mesh is None:
            log_probs = self._unused.connect(log_probs, self.parameters())
        return LogProbs(log_probs=log_probs, extra=extra)

    def with_constants(self, rollouts: Rollouts) -> Rollouts:
        """With `guidance_gradient: conditional`: the rollouts with the unconditional velocities of
        the present weights, which `forward` reuses with any weights."""
        return self.transitions.with_constants(rollouts, self._sigmas)

    def microbatches(
        self, rollouts: Rollouts, budget: int, *, cut_decisions: bool
    ) -> Sequence[Microbatch]:
        """One step of up to `batch` images at a time: memory does not grow with the number of
        steps."""
        count, steps = len(rollouts), rollouts.mask.shape[1]
        most = min(budget, self.config.batch)
        width = 1 if cut_decisions else steps
        return [
            (rows, slice(start, start + width))
            for start in range(0, steps, width)
            for rows in torch.arange(count).split(max(1, most // width))
        ]

    # ---- other weights, saving, memory

    def exchanging(self) -> AbstractContextManager[None]:
        """Unconditional velocities of sampling stay valid afterwards: the weights are restored."""
        return self._weights_now.temporary()

    def uncopied(self) -> Uncopied | None:
        """The model with its adapters switched off, if they add nothing yet (lora_B = 0): that is
        faster than copies, which it has, too.

        Not in a sharded model, where FSDP would never again give these parameters a gradient.
        """
        weights = {key: p.detach() for key, p in kept_parameters(self).items()}
        if self.mesh is not None or not adds_nothing(weights):
            return None
        copies = {key: value.clone() for key, value in weights.items()}
        return Uncopied(self._without_adapters, lambda: copies)

    @contextmanager
    def _without_adapters(self) -> Iterator[None]:
        model: Any = self.adapter.model
        with self.exchanging():
            model.disable_adapters()
            try:
                yield
            finally:
                model.enable_adapters()

    def save_pretrained(self, path: Path) -> None:
        """Write a pipeline folder, or a file of LoRA weights, for diffusers to load."""
        lora = self.config.lora is not None
        first = self.mesh is None or self.mesh.get_rank() == 0
        with nullcontext() if lora or not first else self.guided.encoders.restored():
            save(self.adapter, path, lora=lora, mesh=self.mesh)

    @property
    def card(self) -> Mapping[str, Any]:
        """Facts for the model card: the base model, and the code that uses it."""
        return card(self.config, self.adapter)

    @classmethod
    def estimate(cls, config: Settings, load: Workload) -> Mapping[str, int]:
        """Bytes by purpose, from the pipeline's configuration alone; see `memory`."""
        return estimate(config, load)

    @classmethod
    def estimate_cpu(
        cls,
        config: Settings,
        *,
        rollouts: int,
        prompts: int,
        facts: frozenset[str],
        reference: bool,
    ) -> Mapping[str, int]:
        """Bytes by purpose, from the pipeline's configuration alone; see `memory`."""
        return estimate_cpu(
            config, rollouts=rollouts, prompts=prompts, facts=facts, reference=reference
        )
