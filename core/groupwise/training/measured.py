"""Measured: sums over the micro-batches of an update, read from the device once."""

import math
from collections.abc import Callable, Mapping

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise import objective
from groupwise.rollouts import LogProbs


class Sums:
    """Sums over decisions of the algorithm's metrics, and the largest gap to the sampler.

    They stay on the device, in float64 if it supports that, and are read once per update, since
    every read waits until the device has finished its queue.
    """

    def __init__(self) -> None:
        self.measured: dict[str, Tensor] = {}
        self.totals: dict[str, Tensor] = {}

    def add(
        self,
        measured: Mapping[str, Tensor],
        gap: tuple[Tensor, Tensor] | None,
        batch: Mapping[str, Tensor],
        loss: Tensor,
    ) -> None:
        """gap: log-probs of policy and sampler, [b, t] each; None if they are not compared."""
        mask = batch["mask"]
        _join(self.totals, "loss", loss, torch.add)
        _join(self.totals, "trained_decisions", mask.sum(), torch.add)
        if gap is not None:
            ours, theirs = (values.masked_fill(~mask, 0.0) for values in gap)
            difference = (ours - theirs).abs().nan_to_num(nan=math.inf)
            # KL(sampler || policy), since the samples are the sampler's.
            measured = {
                **measured,
                "mismatch/mean": difference,
                "mismatch/kl": objective.kl(theirs, ours),
            }
            if difference.numel():
                _join(self.totals, "mismatch/max", difference.max(), torch.maximum)
        for name, values in measured.items():
            _join(self.measured, name, values.detach().masked_fill(~mask, 0.0).sum(), torch.add)

    def result(self) -> dict[str, float]:
        parts = gather_object([self._numbers()])
        loss, decisions = (
            sum(totals.get(name, 0.0) for _, totals in parts)
            for name in ("loss", "trained_decisions")
        )
        names = dict.fromkeys(name for measured, _ in parts for name in measured)
        means = {
            name: sum(measured.get(name, 0.0) for measured, _ in parts) / max(1.0, decisions)
            for name in names
        }
        sums = {"loss": loss, "trained_decisions": decisions}
        worst = [totals["mismatch/max"] for _, totals in parts if "mismatch/max" in totals]
        return means | sums | ({"mismatch/max": max(worst)} if worst else {})

    def _numbers(self) -> tuple[dict[str, float], dict[str, float]]:
        """This process's sums and totals, in one read; empty without micro-batches."""
        tensors = [*self.measured.values(), *self.totals.values()]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])
        measured = {name: next(numbers) for name in self.measured}
        return measured, {name: next(numbers) for name in self.totals}


def _join(
    sums: dict[str, Tensor], name: str, value: Tensor, join: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Join a scalar to the sum under a name, in the best precision of its device."""
    value = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
    sums[name] = join(sums[name], value) if name in sums else value


class Checks:
    """Whether all inputs of the loss were finite; read once, after all passes."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.finite: list[Tensor] = []

    @torch.no_grad()
    def add(self, current: LogProbs, batch: Mapping[str, Tensor]) -> None:
        answers = {"log_probs": current.log_probs, "entropy": current.entropy, **current.extra}
        for name, value in {**answers, **batch}.items():
            if value is None or not value.is_floating_point():
                continue
            finite = value.isfinite()
            if value.shape[:2] == batch["mask"].shape:  # padding may hold anything
                finite = finite.flatten(2).all(dim=2) if value.ndim > 2 else finite
                finite = finite | ~batch["mask"]
            self.names.append(f"{name!r} of the policy" if name in answers else f"{name!r}")
            self.finite.append(finite.all())

    def first(self) -> str | None:
        good = torch.stack(self.finite).tolist() if self.finite else []
        return next((name for name, fine in zip(self.names, good, strict=True) if not fine), None)
