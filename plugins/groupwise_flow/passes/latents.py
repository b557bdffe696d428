"""Latents, from rows and seeds; each row's noise comes from its own seed."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from groupwise_flow.adapter import Row
from groupwise_flow.model.sharding import largest
from groupwise_flow.passes.guidance import Guided
from groupwise_flow.process.denoising import Denoised, Plan, Rows, denoise, without_broken
from groupwise_flow.settings import Precision


def sample_latents(
    guided: Guided,
    rows: Sequence[Row],
    seeds: Sequence[int],
    plan: Plan,
    *,
    guidance: float,
    mesh: DeviceMesh | None = None,
) -> Denoised:
    """The latents of B rows, as `decode` takes them; one seed each; mesh: of a sharded model.

    Rows that are not finite are `Denoised.broken`.
    """
    config, adapter, device = guided.config, guided.adapter, guided.device
    count = plan.decisions + plan.noisy_end
    drawn = [_normal(seed, count, adapter.latent_shape) for seed in seeds]
    starts = [start for start, _ in drawn]
    if plan.shared is not None:
        first = {seed: _normal(seed, 0, adapter.latent_shape)[0] for seed in {*plan.shared}}
        starts = [first[seed] for seed in plan.shared]
    start = torch.stack(starts).to(device) * adapter.noise_scale(len(plan.sigmas) - 1)
    noise = torch.stack([noise for _, noise in drawn]).to(device)
    conditions, negative = guided.conditions(rows), guided.negative(rows, guidance)

    passes = iter(_passes(plan, config.batch, mesh))
    graphs: list[list[Tensor]] = []
    kept = iter([plan.keeps_graph_of(step) for step in range(len(plan.sigmas) - 1)])

    def velocity(
        x: Tensor, sigma: Tensor, some: Rows, numbers: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        conditional = conditions.select(some, numbers)
        other = None if negative is None else negative.select(some, numbers)

        def of(part: slice) -> tuple[Tensor, Tensor | None]:
            positions = range(len(numbers))[part]
            return guided.velocity(
                x[part],
                sigma[part],
                conditional.select(part, positions),
                guidance,
                negative=None if other is None else other.select(part, positions),
            )

        with torch.enable_grad() if next(kept) else nullcontext():
            parts = [of(slice(n, n + config.batch)) for n in range(0, len(x), config.batch)]
        if parts[0][0].requires_grad:
            graphs.append([part for part, _ in parts])
        for _ in range(next(passes) - len(parts)):
            of(slice(0, 1))  # result unused: a sharded forward needs all ranks, and others do more
        # Those that need a gradient are computed again in training.
        constant = [u for _, u in parts if u is not None and not config.trains_unconditional]
        return torch.cat([part for part, _ in parts]), torch.cat(constant) if constant else None

    done = without_broken(denoise(velocity, start, noise, plan))
    done = replace(done, latents=done.latents / adapter.data_scale())
    # A row that is not finite would make gradients of the others NaN.
    return done if bool(done.broken.any()) else replace(done, graphs=graphs)


def failures(broken: Tensor, precision: Precision) -> list[str | None] | None:
    """Why rows failed, where their latents or pictures are not finite; None if none did.

    broken: [B] bool.
    """
    if not bool(broken.any()):
        return None
    hint = "a lower train.learning_rate may help"
    if precision == "fp16":
        hint = "policy.precision: bf16 has a wider range"
    reason = f"the model's outputs in {precision} are not finite; {hint}"
    return [reason if bad else None for bad in broken.tolist()]


def _passes(plan: Plan, batch: int, mesh: DeviceMesh | None) -> list[int]:
    """Forward passes in each step: the maximum over all ranks, as each is a collective.

    Ranks need different numbers with `shared_noise`, where a group shares steps before its window.
    """
    steps = range(len(plan.sigmas) - 1)
    return largest([-(-len(plan.distinct(step)[0]) // batch) for step in steps], mesh)


def _normal(seed: int, decisions: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The initial noise and that of each decision; drawn on the CPU, so the same on any device."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(shape, generator=generator)
    return start, torch.randn((decisions, *shape), generator=generator)
