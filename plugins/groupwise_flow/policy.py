"""FlowPolicy: a policy over diffusers' flow-matching pipelines; its decisions are denoising steps.

Flow-GRPO, arXiv:2505.05470: a deterministic sampler made stochastic with the same marginals, so
that each step is a draw from a Gaussian and has a log-prob.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from groupwise.policy import Microbatch, Policy
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Purpose, products_are_exact
from groupwise_flow import sde
from groupwise_flow.card import card
from groupwise_flow.denoising import Denoised
from groupwise_flow.drawing import draw
from groupwise_flow.examining import checked, examine
from groupwise_flow.guided import Guided, at
from groupwise_flow.levels import levels
from groupwise_flow.loading import check_shardable, load
from groupwise_flow.lora import adds_nothing
from groupwise_flow.memory import estimate
from groupwise_flow.reach import Reach
from groupwise_flow.rounding import Rounding
from groupwise_flow.saving import save
from groupwise_flow.settings import Settings
from groupwise_flow.weights import Weights


class FlowPolicy(Policy):
    """Image models of diffusers (Stable Diffusion 3, FLUX.1); decisions are denoising steps.

    Trajectories hold, for each rollout, its samples from the first decision on.

    Extras of a decision beside its log-prob: `mean` [b, t, ...] and `std` [b, t] of its Gaussian,
    and `interval` [b, t], the step's fall of sigma; those of them that are needed.

    facts: `images`, the pictures as tensors; for rewards that ask, `predictions`: a tensor
    [decisions + 1, 3, height, width] each (frames: [decisions + 1, frames, 3, ...]), in CPU memory,
    of the pictures that the model predicted before its first decision and after each one. They are
    decoded as pictures are: that costs decisions + 1 times what those cost. At evaluation there are
    no decisions, and none of these.

    In half precision a metric of every step is `log_prob_error`, see `Rounding`.
    """

    provides = frozenset({"log_probs", "mean", "std", "interval"})
    facts = frozenset({"images"})
    optional_facts = frozenset({"predictions"})
    unit = "denoising steps"
    greedy = False
    Config: ClassVar[type[Settings]] = Settings
    needed: frozenset[str] | None = None

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config
        self.max_decisions = config.window.length(config.steps)
        self.notes: list[str] = []
        self.scale_loss = config.precision == "fp16"
        self.rounding = Rounding(config.precision)
        self.facts = self.facts | self.rounding.metrics  # type: ignore[misc]
        self.logged = self.rounding.metrics  # type: ignore[misc]
        self._reach = Reach()
        self._loaded = False
        self._step = 0

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide what is trained among the processes; `place` then reads their parts alone.

        Text encoders and autoencoder stay whole on each. UserError for what cannot be divided.
        """
        if self._loaded:
            raise ValueError("shard: the weights were read by `place`; it comes after this")
        check_shardable(self.config)
        self.mesh = mesh

    def place(self, device: torch.device | str) -> None:
        """Read the weights, and move them to the device; called again, it only moves them."""
        if not self._loaded:
            self._load()
        super().place(device)

    def _load(self) -> None:
        self.adapter = load(self.config, self.mesh)
        self.guided = Guided(self.adapter, self.config)
        for name, module in self.adapter.pipeline.components.items():
            if isinstance(module, nn.Module):
                self.add_module(name, module)  # so that they move to a device together
        self.sigmas = levels(self.adapter, self.config.steps)
        self._weights_now = Weights(self.adapter.model)
        self._loaded = True

    def train(self, mode: bool = True) -> Self:
        """Dropout stays off: it would part training from sampling."""
        return super().train(False)

    @property
    def device(self) -> torch.device:
        return self.guided.device

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """In float32 alone, of matrix products, too."""
        return self.config.precision == "float32" and products_are_exact()

    def begin(self, step: int) -> None:
        self._step = step
        self.rounding.begin()

    def needs(self, name: str) -> bool:
        return self.needed is None or name in self.needed

    def check_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """UserError for a prompt that is no text, or longer than the text encoders take, unless
        such prompts are skipped or cut, of which a note is made."""
        self.notes += checked(self.guided, rows)

    def skips(self, row: Mapping[str, Any]) -> bool:
        """Whether the row is never drawn: its prompt is too long, with `long_prompts: skip`."""
        limit = self.guided.limit
        if self.config.long_prompts != "skip" or limit is None:
            return False
        return bool(limit.too_long([self.adapter.text(row)]))

    @classmethod
    def examine(cls, config: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """What a run would refuse, and notes on its prompts, without any weights."""
        return examine(config, rows)

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
        """Images of text prompts; see `Policy.sample`. Only training has noise and decisions."""
        training = purpose == "train"
        rows = [row for row in prompts for _ in range(group_size)]
        groups = torch.arange(len(prompts)).repeat_interleave(group_size)
        # A group has one window, that of its first seed.
        starts = self.config.window.starts(self.config.steps, seeds[::group_size], self._step)
        first = starts[groups]
        sigmas = self.sigmas if training else levels(self.adapter, self.config.evaluation_steps)
        done = draw(
            self.guided,
            rows,
            seeds,
            sigmas=sigmas,
            first=first,
            leaders=groups * group_size,
            training=training,
            predicts="predictions" in self.requested,
            mesh=self.mesh,
        )
        completions, images = self.guided.completions(done.latents)
        rollouts = Rollouts(
            prompts=rows,
            completions=completions,
            groups=groups.to(self.device),
            mask=torch.ones_like(done.log_probs, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool, device=self.device),
            sampler_log_probs=done.log_probs,
            facts={"images": list(images), **self._predictions(done, images)},
            trajectory=self._trajectory(done, first) if training else {},
        )
        return self.rounding.measured(rollouts, self._exact_log_probs) if training else rollouts

    def _predictions(self, done: Denoised, images: Tensor) -> dict[str, Sequence[Any]]:
        if "predictions" not in self.requested:
            return {}
        if done.predicted is None:
            return {"predictions": list(images.new_empty(len(images), 0, *images.shape[1:]).cpu())}
        clean = done.predicted
        decoded = self.guided.decode(clean.flatten(0, 1))
        return {"predictions": list(decoded.unflatten(0, clean.shape[:2]))}

    def _exact_log_probs(self, rollouts: Rollouts) -> Tensor:
        """[b, t] in float32, decision by decision."""
        with self.guided.exactly():
            parts = [
                self(rollouts, slice(number, number + 1)).log_probs
                for number in range(rollouts.mask.shape[1])
            ]
        return torch.cat(parts, dim=1)

    def _trajectory(self, done: Denoised, first: Tensor) -> dict[str, Tensor | Sequence[Tensor]]:
        """What training needs of sampling; latents wait in CPU memory."""
        kept: dict[str, Tensor | Sequence[Tensor]] = {
            "path": list(done.path.cpu()),
            "first": first.to(self.device),
        }
        if done.unconditional is not None:
            kept["unconditional"] = list(done.unconditional.cpu())
            kept["version"] = [torch.tensor(self._weights_now.number)] * len(first)
        return kept

    # ---- log-probs

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        """Log-probs of steps, averaged over the latents' dimensions, and the extras needed.

        The unconditional branch of guidance has no gradient, as in the published training. Until
        the first update after sampling it is not computed again.
        """
        start, stop, _ = decisions.indices(rollouts.mask.shape[1])
        path = self._stack(rollouts, "path", slice(start, stop + 1))
        shape = (len(rollouts), stop - start)
        steps = torch.arange(start, stop, device=self.device)
        place = (rollouts.tensor("first").to(self.device).unsqueeze(1) + steps).flatten()
        sigmas = self.sigmas.to(self.device)
        sigma, after = sigmas[place], sigmas[place + 1]
        rows = torch.arange(shape[0], device=self.device).repeat_interleave(shape[1])
        guidance = self.config.guidance_in_training
        unconditional = self._kept_unconditional(rollouts, slice(start, stop))
        negative = None
        if unconditional is None:
            negative = self.guided.negative(rollouts.prompts, guidance)
        velocity, _ = self.guided.velocity(
            path[:, :-1].flatten(0, 1),
            sigma,
            at(self.guided.conditions(rollouts.prompts), rows),
            guidance,
            negative=negative and at(negative, rows),
            unconditional=unconditional,
        )
        step = sde.move(
            velocity,
            path[:, :-1].flatten(0, 1),
            sigma,
            after,
            kind=self.config.sde,
            noise_level=self.config.noise_level,
            next_sample=path[:, 1:].flatten(0, 1),
        )
        extra = {
            "mean": step.mean.unflatten(0, shape),
            "std": step.std.flatten().view(shape),
            "interval": (sigma - after).view(shape),
        }
        extra = {name: value for name, value in extra.items() if self.needs(name)}
        log_probs = step.log_prob.view(shape)
        if self.mesh is None:
            log_probs = self._reach(log_probs, self.parameters())
        return LogProbs(log_probs=log_probs, extra=extra)

    def _kept_unconditional(self, rollouts: Rollouts, steps: slice) -> Tensor | None:
        """[n, ...] as it was in sampling, while the weights are still those of sampling."""
        if "unconditional" not in rollouts.trajectory:
            return None
        now = self._weights_now.number
        if any(int(version) != now for version in rollouts.trajectory["version"]):
            return None
        return self._stack(rollouts, "unconditional", steps).flatten(0, 1)

    def _stack(self, rollouts: Rollouts, name: str, steps: slice) -> Tensor:
        return torch.stack([row[steps] for row in rollouts.trajectory[name]]).to(self.device)

    def microbatches(
        self, rollouts: Rollouts, budget: int, *, cut_decisions: bool
    ) -> Sequence[Microbatch]:
        """Step by step, `batch` images at once: memory does not grow with the steps trained."""
        count, steps = len(rollouts), rollouts.mask.shape[1]
        most = min(budget, self.config.batch)
        width = 1 if cut_decisions else steps
        return [
            (rows, slice(start, start + width))
            for start in range(0, steps, width)
            for rows in torch.arange(count).split(max(1, most // width))
        ]

    # ---- other weights, saving, memory

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """LoRA that was kept before it had learned anything is switched off, which is faster.

        Not where it is sharded: there a parameter that has no gradient once never gets one. The
        unconditional branch of what was sampled before stays known: its weights come back.
        """
        model: Any = self.adapter.model
        with self._weights_now.lent():
            if self.mesh is not None or not adds_nothing(self._weights(name)):
                with super().using(name):
                    yield
                return
            model.disable_adapters()
            try:
                yield
            finally:
                model.enable_adapters()

    def save_pretrained(self, path: Path) -> None:
        """A pipeline folder, or LoRA weights, as diffusers reads them."""
        save(self.adapter, path, lora=self.config.lora is not None, mesh=self.mesh)

    @property
    def card(self) -> Mapping[str, Any]:
        """Facts for the model's page: what it was made of, and how it is used."""
        return card(self.config, self.adapter)

    @classmethod
    def estimate(
        cls,
        config: Settings,
        *,
        decisions: int,
        rollouts: int,
        group_size: int,
        sampled: int,
        training: bool,
        reference: bool,
        averages: int,
        shards: int = 1,
    ) -> Mapping[str, int]:
        """Bytes by purpose, from the pipeline's configuration alone."""
        return estimate(
            config,
            images=min(decisions, config.batch, rollouts),
            training=training,
            reference=reference,
            averages=averages,
            shards=shards,
        )
