"""DiffusionPolicy: the base of policies over diffusers' flow-matching pipelines.

It loads the pipeline, encodes prompts, denoises, decodes and saves. A policy upon it says how
rollouts of training are denoised (`plan`), what a decision is, and what `forward` returns of it.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from groupwise.kit.memory import Workload
from groupwise.policy import Microbatch, Outputs, Policy, Uncopied
from groupwise.rollouts import Rollouts
from groupwise.sampler import GroupSampler, Purpose, products_are_exact
from groupwise.weights import kept_parameters
from groupwise_flow.estimates.memory import estimate, estimate_cpu
from groupwise_flow.files.card import card
from groupwise_flow.files.loading import check_shardable, load
from groupwise_flow.files.outline import outline
from groupwise_flow.files.saving import save, try_saving
from groupwise_flow.model.lora import adds_nothing
from groupwise_flow.model.precision import check_computes
from groupwise_flow.model.unused_parameters import UnusedParameters
from groupwise_flow.passes.guidance import PIXELS, Guided
from groupwise_flow.passes.latents import failures, sample_latents
from groupwise_flow.preflight import check_teacher, checked, examine, reads_pictures
from groupwise_flow.process.denoising import Denoised, Plan, without_noise
from groupwise_flow.process.schedules import levels
from groupwise_flow.rehearsal import PictureRehearsal
from groupwise_flow.settings import Settings


class DiffusionPolicy(Policy, GroupSampler):
    """Image models of diffusers (Stable Diffusion, FLUX, Qwen-Image, Z-Image and others).

    facts: `pixels`, the pictures as tensors; of videos, whose tensors take four times the memory of
    their frames, only for rewards that have it in their signature.

    sigmas: [steps + 1], the noise levels of sampling in training, on the CPU.
    """

    optional_facts = frozenset({PIXELS})
    greedy = False
    Config: ClassVar[type[Settings]]
    config: Settings
    sigmas: Tensor

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config
        self.max_decisions = config.max_decisions
        self.notes: list[str] = []
        self.scale_loss = config.precision == "fp16"
        self.factored = config.lora is not None
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
            check_computes(self.config.precision, torch.device(device))
            self._load()
            self._loaded = True
        super().place(device)

    def _load(self) -> None:
        self.adapter = load(self.config, self.mesh)
        self.guided = Guided(self.adapter, self.config)
        self.evaluated = self.guided.at_evaluation()
        away = self.guided.encoders.away
        for name, module in self.adapter.pipeline.components.items():
            if isinstance(module, nn.Module) and name not in away:
                self.add_module(name, module)  # so that all of them move to the device together
        self._unused = UnusedParameters(alike=len(self.adapter.models) == 1)
        self.sigmas = levels(self.adapter, self.config.steps)

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: with dropout, the outputs of training would differ from those of
        sampling, and ratios would not be 1."""
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

    @classmethod
    def check_teacher(cls, config: Settings, teacher: type[Policy], teacher_config: Any) -> None:
        """Raise UserError for a teacher with other latents or other denoising steps, whose noise
        and so whose Gaussians would be others."""
        super().check_teacher(config, teacher, teacher_config)
        check_teacher(config, teacher_config)

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
    def rehearsal(cls, config: Settings) -> PictureRehearsal | None:
        """Grey pictures or videos; None for pipelines that need their weights."""
        adapter = outline(config)
        return None if adapter is None else PictureRehearsal(adapter)

    @classmethod
    def reads_attached(cls, config: Settings) -> bool:
        """Whether its adapter reads pictures of rows."""
        return reads_pictures(config)

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
        group_seeds: Sequence[int] | None = None,
    ) -> Rollouts:
        """Images for text prompts; see `Policy.sample`. Evaluation has no noise but the first."""
        training = purpose == "train"
        guided = self.guided if training else self.evaluated
        rows = [row for row in prompts for _ in range(group_size)]
        groups = torch.arange(len(prompts)).repeat_interleave(group_size)
        if training:
            shared = seeds[::group_size] if group_seeds is None else group_seeds
            plan, guidance = self.plan(shared, group_size), self.config.guidance_in_training
        else:
            sigmas = levels(guided.adapter, self.config.evaluation_steps)
            plan, guidance = without_noise(sigmas, len(rows)), self.config.guidance
        done = sample_latents(guided, rows, seeds, plan, guidance=guidance, mesh=self.mesh)
        tensors = PIXELS in self._optional or not self.adapter.is_video
        pictures = guided.completions(done.latents, tensors=tensors)
        width = self.config.max_decisions if training else 0
        rollouts = Rollouts(
            prompts=rows,
            completions=pictures.completions,
            groups=groups.to(self.device),
            mask=torch.ones(len(rows), width, dtype=torch.bool, device=self.device),
            truncated=torch.zeros(len(rows), dtype=torch.bool, device=self.device),
            failures=failures(done.broken | pictures.broken, self.config.precision),
            facts={} if pictures.images is None else {PIXELS: list(pictures.images)},
        )
        return self.with_trajectory(rollouts, done, plan, seeds) if training else rollouts

    @abstractmethod
    def plan(self, group_seeds: Sequence[int], group_size: int) -> Plan:
        """How `group_size` rollouts of training for each of these groups, or parts of groups, are
        denoised, from the levels `sigmas`."""

    @abstractmethod
    def with_trajectory(
        self, rollouts: Rollouts, done: Denoised, plan: Plan, seeds: Sequence[int]
    ) -> Rollouts:
        """Rollouts of training with what `forward` reads of their decisions."""

    # ---- training

    def connected(self, output: Tensor) -> Tensor:
        """An output of `forward` that gives every trained weight a gradient, as DDP needs it."""
        return output if self.mesh is not None else self._unused.connect(output, self.parameters())

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
        models: list[Any] = [*self.adapter.models.values()]
        with self.exchanging():
            for model in models:
                model.disable_adapters()
            try:
                yield
            finally:
                for model in models:
                    model.enable_adapters()

    def save_pretrained(self, path: Path) -> None:
        """Write a pipeline folder, or a file of LoRA weights, for diffusers to load."""
        lora = self.config.lora is not None
        first = self.mesh is None or self.mesh.get_rank() == 0
        with nullcontext() if lora or not first else self.guided.encoders.restored():
            save(self.adapter, path, lora=lora, mesh=self.mesh)

    def try_saving(self) -> None:
        """Write all but the weights into a folder that is then removed."""
        try_saving(self.adapter, lora=self.config.lora is not None)

    @property
    def card(self) -> Mapping[str, Any]:
        """Facts for the model card: the base model, and the code that uses it."""
        return card(self.config, self.evaluated.adapter)

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
        references: int,
    ) -> Mapping[str, int]:
        """Bytes by purpose, from the pipeline's configuration alone; see `memory`."""
        return estimate_cpu(
            config, rollouts=rollouts, prompts=prompts, facts=facts, references=references
        )
