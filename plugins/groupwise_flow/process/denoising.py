"""Denoising a batch: ODE steps outside the window, decisions with noise inside it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.kit import progress
from groupwise_flow.sde import ODE, Noise

Rows = slice | Tensor
"""Rows of a batch: a slice where they are contiguous, which copies nothing, or indices."""

Velocity = Callable[[Tensor, Tensor, Rows, Sequence[int]], tuple[Tensor, Tensor | None]]
"""(latents [n, ...], sigma [n], the n rows, their numbers on the host) -> the velocity and, if it
is to be kept, its unconditional part."""

ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a batch of B rollouts is denoised. On the CPU, so that no step waits for the device.

    sigmas: [steps + 1], falling; first: [B] first decision of each row; decisions: their number per
        row, 0 for none.
    source: [B] row with which a row is identical until its first decision; its own index if none.
    noise: of decisions, and of the last step with `noisy_end`.
    shared: for each row the seed of its first noise, where a group shares that; None if its own.
    noisy_end: whether the last step has noise, too, although it is no decision.
    predicts: whether to keep the predicted clean samples x0, before the first decision and after
        each one.
    keeps_path: whether to keep the samples and log-probs of decisions.
    keeps_graph: whether the graph of decisions is kept, which are then at the same steps in all
        rows.
    """

    sigmas: Tensor
    first: Tensor
    decisions: int
    source: Tensor
    noise: Noise
    shared: Sequence[int] | None = None
    noisy_end: bool = False
    predicts: bool = False
    keeps_path: bool = True
    keeps_graph: bool = False

    @property
    def kept_decisions(self) -> int:
        """The decisions of a row whose samples and log-probs are kept."""
        return self.decisions if self.keeps_path else 0

    def keeps_graph_of(self, step: int) -> bool:
        """Whether the graph of this step's passes is kept."""
        return self.keeps_graph and 0 <= step - int(self.first[0]) < self.decisions

    def distinct(self, step: int) -> tuple[Tensor, Tensor]:
        """Indices of the distinct rows before a step, and [B] the place of each row among them."""
        source = torch.where(step <= self.first, self.source, torch.arange(len(self.first)))
        return source.unique(return_inverse=True)


def without_noise(sigmas: Tensor, count: int) -> Plan:
    """The plan of `count` rollouts all of whose steps are the ODE's; sigmas: [steps + 1]."""
    return Plan(
        sigmas=sigmas,
        first=torch.zeros(count, dtype=torch.int64),
        decisions=0,
        source=torch.arange(count),
        noise=ODE,
    )


@dataclass(frozen=True, kw_only=True)
class Denoised:
    """latents [B, ...]; path [B, kept decisions + 1, ...], the samples from the first decision on;
    log_probs [B, kept decisions]; unconditional [B, decisions, ...], the unconditional velocities,
    or None if they are not kept; predicted [B, decisions + 1, ...], the clean samples x0 = x -
    sigma v predicted at `path`, or None; broken [B] bool on the CPU, rows that were not finite,
    which are 0 in all tensors; graphs: for each decision the velocities [n, ...] of each pass, with
    their graph, where these are kept and no row is broken."""

    latents: Tensor
    path: Tensor
    log_probs: Tensor
    unconditional: Tensor | None
    predicted: Tensor | None
    broken: Tensor
    graphs: Sequence[Sequence[Tensor]] = ()


@dataclass(frozen=True, kw_only=True)
class _Step:
    """The rows of one step, on the device.

    distinct: indices of distinct rows; numbers: the same on the host; copies: [B] place of each row
        among them, None if all are distinct.
    deciding: rows for which the step is a decision, None for none; number: index of that decision
        within the row's window, [n] or the same for all.
    """

    distinct: Rows
    numbers: Sequence[int]
    copies: Tensor | None
    deciding: Rows | None
    number: int | Tensor


def denoise(velocity: Velocity, start: Tensor, noise: Tensor, plan: Plan) -> Denoised:
    """From noise to latents, without making the host wait for the device.

    start: [B, ...] at the first sigma; noise: [B, decisions, ...] standard normal, with `noisy_end`
    one more per row.
    """
    shape = (len(start), plan.kept_decisions)
    path = start.new_zeros(shape[0], shape[1] + 1, *start.shape[1:])
    log_probs = start.new_zeros(shape)
    unconditional: Tensor | None = None
    clean: list[Tensor] = []
    draw = plan.noise.move
    x, sigmas = start, plan.sigmas.to(start.device)
    for number, step in enumerate(list(_steps(plan, start.device))):
        sigma, after = sigmas[number], sigmas[number + 1]
        progress.count("denoising steps", len(start))
        v, v_unconditional = _velocities(velocity, x, sigma, step)
        if plan.predicts:
            clean.append(x - sigma * v)
        if number == len(sigmas) - 2 and plan.noisy_end:
            x = draw(v, x, sigma, after, noise=noise[:, -1]).next_sample
            continue
        x_next = x
        if step.deciding is not ALL:
            x_next = ODE.move(v, x, sigma, after).next_sample
        if step.deciding is not None:
            rows, at = step.deciding, step.number
            drawn = draw(v[rows], x[rows], sigma, after, noise=noise[rows, at])
            if plan.keeps_path:
                path[rows, at], path[rows, at + 1] = x[rows], drawn.next_sample
                log_probs[rows, at] = drawn.log_prob
            if v_unconditional is not None:
                if unconditional is None:
                    unconditional = torch.zeros_like(path[:, 1:])
                unconditional[rows, at] = v_unconditional[rows]
            if step.deciding is ALL:
                x_next = drawn.next_sample
            else:
                x_next[rows] = drawn.next_sample
        x = x_next
    return Denoised(
        latents=x,
        path=path,
        log_probs=log_probs,
        unconditional=unconditional,
        predicted=_around_decisions(clean, plan) if clean else None,
        broken=torch.zeros(len(x), dtype=torch.bool),
    )


def without_broken(done: Denoised) -> Denoised:
    """The same with rows that are not finite marked as `broken` and set to 0.

    Such a row must not reach any computation: 0 x NaN is NaN, also in the gradient of others.
    """
    columns = [done.latents.flatten(1), done.path.flatten(1), done.log_probs]
    broken = ~torch.stack([column.isfinite().all(dim=1) for column in columns]).all(dim=0)
    if not bool(broken.any()):
        return done

    def cleared(column: Tensor | None) -> Tensor | None:
        rows = broken.view(-1, *[1] * (column.ndim - 1)) if column is not None else None
        return None if column is None or rows is None else column.masked_fill(rows, 0.0)

    tensors = {
        name: cleared(getattr(done, name))
        for name in ("latents", "path", "log_probs", "unconditional", "predicted")
    }
    return Denoised(**tensors, broken=broken.cpu())  # type: ignore[arg-type]


def _around_decisions(steps: list[Tensor], plan: Plan) -> Tensor:
    """[B, decisions + 1, ...] entries at each row's decisions and one after; the last step is never
    a decision."""
    kept = torch.stack(steps, dim=1)
    places = plan.first.unsqueeze(1) + torch.arange(plan.decisions + 1)
    rows = torch.arange(len(places)).unsqueeze(1)
    return kept[rows.to(kept.device), places.to(kept.device)]


def _steps(plan: Plan, device: torch.device) -> Iterator[_Step]:
    for step in range(len(plan.sigmas) - 1):
        distinct, copies = plan.distinct(step)
        alike = len(distinct) < len(plan.first)
        number = step - plan.first
        deciding = ((number >= 0) & (number < plan.decisions)).nonzero().flatten()
        together = len(deciding) == len(plan.first) and bool((number == number[0]).all())
        yield _Step(
            distinct=distinct.to(device) if alike else ALL,
            numbers=distinct.tolist(),
            copies=copies.to(device) if alike else None,
            deciding=ALL if together else deciding.to(device) if len(deciding) else None,
            number=int(number[0]) if together else number[deciding].to(device),
        )


def _velocities(
    velocity: Velocity, x: Tensor, sigma: Tensor, step: _Step
) -> tuple[Tensor, Tensor | None]:
    """Velocities of all rows; identical rows are computed once."""
    some = x[step.distinct]
    v, unconditional = velocity(some, sigma.expand(len(some)), step.distinct, step.numbers)
    if step.copies is None:
        return v, unconditional
    return v[step.copies], None if unconditional is None else unconditional[step.copies]
