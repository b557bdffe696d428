"""FlowPolicy: a policy over diffusers' flow-matching pipelines; its decisions are denoising steps.

Flow-GRPO, arXiv:2505.05470: a deterministic sampler made stochastic with the same marginals, so
that each step is a draw from a Gaussian and has a log-prob.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from torch import Tensor, nn

from groupwise.errors import UserError
from groupwise.policy import Microbatch, Policy
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Purpose
from groupwise_flow import lengths, sde
from groupwise_flow.adapter import Conditions
from groupwise_flow.card import card
from groupwise_flow.denoising import Denoised, Plan, Rows, denoise
from groupwise_flow.examining import examine
from groupwise_flow.guided import Guided
from groupwise_flow.loading import load, save
from groupwise_flow.memory import estimate
from groupwise_flow.reach import Reach
from groupwise_flow.rounding import Rounding
from groupwise_flow.settings import Settings


class FlowPolicy(Policy):
    """Trajectories hold, for each rollout, its samples from the first decision on.

    Extras of a decision beside its log-prob: `mean` [b, t, ...] and `std` [b, t] of its Gaussian,
    `sampled_mean` [b, t, ...] it was drawn with, and `interval` [b, t], the step's fall of sigma;
    those of them that are needed.

    In half precision a metric of every step is `log_prob_error`, see `Rounding`.
    """

    provides = frozenset({"log_probs", "mean", "std", "sampled_mean", "interval", "reference"})
    facts = frozenset({"images"})
    unit = "denoising steps"
    greedy = False
    Config: ClassVar[type[Settings]] = Settings
    needed: frozenset[str] | None = None

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config
        self.adapter = load(config)
        self.guided = Guided(self.adapter, config)
        for name, module in self.adapter.pipeline.components.items():
            if isinstance(module, nn.Module):
                self.add_module(name, module)  # so that they move to a device together
        self.sigmas = self.adapter.sigmas(config.steps)
        self.max_decisions = config.window.length(config.steps)
        self.notes: list[str] = []
        self.scale_loss = config.precision == "fp16"
        self.rounding = Rounding(config.precision)
        self.facts = self.facts | self.rounding.metrics  # type: ignore[misc]
        self.logged = self.rounding.metrics  # type: ignore[misc]
        self._reach = Reach()
        self._step = 0

    def train(self, mode: bool = True) -> Self:
        """Dropout stays off: it would part training from sampling."""
        return super().train(False)

    @property
    def device(self) -> torch.device:
        return self.guided.device

    def begin(self, step: int) -> None:
        self._step = step
        self.rounding.begin()

    def needs(self, name: str) -> bool:
        return self.needed is None or name in self.needed

    def check_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """UserError for a prompt that is no text, or longer than the text encoders take, unless
        such prompts are skipped or cut, of which a note is made."""
        limit, long = self.guided.limit, self.config.long_prompts
        if limit is not None and long != "cut":
            limit.check([self.config.negative_prompt])
        self.notes += lengths.check(rows, limit, long)

    def skips(self, row: Mapping[str, Any]) -> bool:
        """Whether the row is never drawn: its prompt is too long, with `long_prompts: skip`."""
        limit = self.guided.limit
        if self.config.long_prompts != "skip" or limit is None:
            return False
        return bool(limit.too_long([lengths.text(row)]))

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
        texts = [lengths.text(row) for row in rows]
        done = self._denoise(texts, first, groups * group_size, seeds, training)
        if not bool(done.latents.isfinite().all()):
            half = self.config.precision == "fp16"
            raise UserError(
                f"policy.precision: the model's answers in {self.config.precision} are not finite, "
                f"so there are no pictures; "
                f"{'bf16 has a wider range' if half else 'a lower learning rate may help'}"
            )
        images = self.guided.images(done.latents)
        pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        rollouts = Rollouts(
            prompts=rows,
            completions=[Image.fromarray(picture) for picture in pixels],
            groups=groups.to(self.device),
            mask=torch.ones_like(done.log_probs, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool, device=self.device),
            sampler_log_probs=done.log_probs,
            facts={"images": list(images)},
            trajectory=self._trajectory(done, first) if training else {},
        )
        return self.rounding.measured(rollouts, self._exact_log_probs) if training else rollouts

    def _exact_log_probs(self, rollouts: Rollouts) -> Tensor:
        """[b, t] in float32, decision by decision."""
        with self.guided.exactly():
            parts = [
                self(rollouts, slice(number, number + 1)).log_probs
                for number in range(rollouts.mask.shape[1])
            ]
        return torch.cat(parts, dim=1)

    def _denoise(
        self,
        texts: Sequence[str],
        first: Tensor,
        leaders: Tensor,
        seeds: Sequence[int],
        training: bool,
    ) -> Denoised:
        """first: [B] the first decision of each; leaders: [B] the first row of its group."""
        config, shape = self.config, self.adapter.latent_shape
        source = leaders if config.shared_noise and training else torch.arange(len(texts))
        guidance = config.guidance_in_training if training else config.guidance
        plan = Plan(
            sigmas=(self.sigmas if training else self.adapter.sigmas(config.evaluation_steps)),
            first=first,
            decisions=config.window.length(config.steps) if training else 0,
            source=source,
            kind=config.sde,
            noise_level=config.noise_level,
            noisy_end=training and config.last_step == "noise",
        )
        drawn = [_normal(seed, plan.decisions + plan.noisy_end, shape) for seed in seeds]
        start = torch.stack([drawn[row][0] for row in source.tolist()]).to(self.device)
        noise = torch.stack([noise for _, noise in drawn]).to(self.device)
        conditions = self.guided.encodings(texts, self.device)

        def velocity(x: Tensor, sigma: Tensor, rows: Rows) -> tuple[Tensor, Tensor | None]:
            of_rows = _at(conditions, rows)
            parts = [
                self.guided.velocity(x[some], sigma[some], _at(of_rows, some), guidance)
                for start in range(0, len(x), config.batch)
                for some in [slice(start, start + config.batch)]
            ]
            unconditional = [part for _, part in parts if part is not None]
            return (
                torch.cat([part for part, _ in parts]),
                torch.cat(unconditional) if unconditional else None,
            )

        return denoise(velocity, start, noise, plan, keep_mean=self.needs("sampled_mean"))

    def _trajectory(self, done: Denoised, first: Tensor) -> dict[str, Tensor | Sequence[Tensor]]:
        """What training needs of sampling; latents wait in CPU memory."""
        kept: dict[str, Tensor | Sequence[Tensor]] = {
            "path": list(done.path.cpu()),
            "first": first.to(self.device),
        }
        if done.mean is not None:
            kept["sampled_mean"] = list(done.mean.cpu())
        if done.unconditional is not None:
            kept["unconditional"] = list(done.unconditional.cpu())
            kept["version"] = [torch.tensor(self.guided.version)] * len(first)
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
        place = (rollouts.tensor("first").unsqueeze(1) + steps).flatten()
        sigmas = self.sigmas.to(self.device)
        sigma, after = sigmas[place], sigmas[place + 1]
        rows = torch.arange(shape[0], device=self.device).repeat_interleave(shape[1])
        velocity, _ = self.guided.velocity(
            path[:, :-1].flatten(0, 1),
            sigma,
            _at(self._conditions(rollouts), rows),
            self.config.guidance_in_training,
            self._kept_unconditional(rollouts, slice(start, stop)),
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
        if self.needs("sampled_mean"):
            extra["sampled_mean"] = self._stack(rollouts, "sampled_mean", slice(start, stop))
        log_probs = self._reach(step.log_prob.view(shape), self.parameters())
        return LogProbs(log_probs=log_probs, extra=extra)

    def _conditions(self, rollouts: Rollouts) -> Conditions:
        texts = [lengths.text(row) for row in rollouts.prompts]
        return self.guided.encodings(texts, self.device)

    def _kept_unconditional(self, rollouts: Rollouts, steps: slice) -> Tensor | None:
        """[n, ...] as it was in sampling, while the weights are still those of sampling."""
        if "unconditional" not in rollouts.trajectory:
            return None
        now = self.guided.version
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

    def keep(self, name: str) -> None:
        if name == "reference":
            self.guided.keep_reference()

    def using(self, name: str) -> AbstractContextManager[None]:
        """ "reference": the kept copy, or the transformer with its adapters switched off."""
        return self.guided.as_reference() if name == "reference" else super().using(name)

    def save_pretrained(self, path: Path) -> None:
        """A pipeline folder, or LoRA weights, as diffusers reads them."""
        save(self.adapter, path, lora=self.config.lora is not None)

    @property
    def card(self) -> Mapping[str, Any]:
        """Facts for the model's page: what it was made of, and how it is used."""
        return card(self.config, self.adapter)

    @classmethod
    def estimate(
        cls, config: Settings, *, decisions: int, rollouts: int, sampled: int, training: bool
    ) -> Mapping[str, int]:
        """Bytes by purpose, from the pipeline's configuration alone."""
        return estimate(config, images=min(decisions, config.batch, rollouts), training=training)


def _normal(seed: int, decisions: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The initial noise, and that of each decision; drawn on the CPU, so alike on any device."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(shape, generator=generator)
    return start, torch.randn((decisions, *shape), generator=generator)


def _at(conditions: Conditions, rows: Rows) -> Conditions:
    return {name: value[rows] for name, value in conditions.items()}
