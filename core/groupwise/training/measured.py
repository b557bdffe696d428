"""Measured: sums over the micro-batches of an update, read from the device once."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from accelerate import PartialState
from torch import Tensor

from groupwise import objective
from groupwise.rollouts import LogProbs
from groupwise.training.tally import Tally

Population = Literal["trained", "compared"]
Key = TypeVar("Key")


class Sums:
    """Sums over the decisions of an update, and how many decisions they are over.

    Two populations: decisions that are trained, those with a backward pass; and among them those
    whose log-probs are compared with the sampler's. The sums stay on the device, in float64 if it
    supports that, and are read once per update, since every read waits until the device has
    finished its queue.
    """

    def __init__(self) -> None:
        self._counts: dict[Population, Tensor] = {}
        self._sums: dict[tuple[Population, str], Tensor] = {}
        self._losses: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}

    def add(
        self, measured: Mapping[str, Tensor], batch: Mapping[str, Tensor], loss: Tensor
    ) -> None:
        """measured: [b, t] each, over the trained decisions of a micro-batch."""
        _join(self._losses, "loss", loss, torch.add)
        self._over("trained", batch["mask"], measured)

    def compare(self, ours: Tensor, sampler: Tensor, mask: Tensor) -> None:
        """Add the difference of the policy's log-probs [b, t] from the sampler's.

        mask: [b, t] bool, the decisions to compare.
        """
        ours, sampler = ours.masked_fill(~mask, 0.0), sampler.masked_fill(~mask, 0.0)
        difference = (ours - sampler).abs().nan_to_num(nan=torch.inf)
        # KL(sampler || policy), since the samples are the sampler's.
        gaps = {"mismatch/mean": difference, "mismatch/kl": objective.kl(sampler, ours)}
        self._over("compared", mask, gaps)
        if difference.numel():
            _join(self._largest, "mismatch/max", difference.max(), torch.maximum)

    def _over(self, population: Population, mask: Tensor, measured: Mapping[str, Tensor]) -> None:
        _join(self._counts, population, mask.sum(), torch.add)
        for name, values in measured.items():
            total = values.masked_fill(~mask, 0.0).sum()
            _join(self._sums, (population, name), total, torch.add)

    def tally(self) -> Tally:
        """The metrics of the update, over all processes. A collective."""
        counts, sums, losses, largest = _read(self._counts, self._sums, self._losses, self._largest)
        tally = Tally()
        # The loss of an update is one sum over all processes, so it counts once.
        tally.mean("loss", losses.get("loss", 0.0), int(PartialState().is_main_process))
        tally.total("trained_decisions", counts.get("trained", 0.0))
        for (population, name), total in sums.items():
            tally.mean(name, total, counts[population])
        for name, value in largest.items():
            tally.largest(name, value)
        return tally.of_all_processes()


def _read(*groups: Mapping[Any, Tensor]) -> list[dict[Any, float]]:
    """The numbers of all tensors, in one read."""
    tensors = [tensor for group in groups for tensor in group.values()]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return [{key: next(numbers) for key in group} for group in groups]


def _join(
    sums: dict[Key, Tensor], key: Key, value: Tensor, join: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Join a scalar to the one under a key, in the best precision of its device."""
    value = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
    sums[key] = join(sums[key], value) if key in sums else value


class Checks:
    """Whether all inputs of the loss were finite; read once, after all passes."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.finite: list[Tensor] = []

    @torch.no_grad()
    def add(self, current: LogProbs, batch: Mapping[str, Tensor]) -> None:
        outputs = {"log_probs": current.log_probs, "entropy": current.entropy, **current.extra}
        for name, value in {**outputs, **batch}.items():
            if value is None or not value.is_floating_point():
                continue
            finite = value.isfinite()
            if value.shape[:2] == batch["mask"].shape:  # padding may hold anything
                finite = finite.flatten(2).all(dim=2) if value.ndim > 2 else finite
                finite = finite | ~batch["mask"]
            self.names.append(f"{name!r} of the policy" if name in outputs else f"{name!r}")
            self.finite.append(finite.all())

    def first(self) -> str | None:
        good = torch.stack(self.finite).tolist() if self.finite else []
        return next((name for name, fine in zip(self.names, good, strict=True) if not fine), None)
