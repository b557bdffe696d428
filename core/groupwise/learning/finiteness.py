"""Finiteness: whether all inputs of an update's loss were finite."""

from collections.abc import Mapping

import torch
from torch import Tensor

from groupwise.rollouts import LogProbs


class Finiteness:
    """Whether all inputs of the loss were finite; read once, after all passes."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.finite: list[Tensor] = []

    @torch.no_grad()
    def add(self, current: LogProbs, batch: Mapping[str, Tensor]) -> None:
        outputs = current.outputs
        for name, value in {**outputs, **batch}.items():
            if not value.is_floating_point():
                continue
            finite = value.isfinite()
            if value.shape[:2] == batch["mask"].shape:  # padding may hold anything
                finite = finite.flatten(2).all(dim=2) if value.ndim > 2 else finite
                finite = finite | ~batch["mask"]
            self.names.append(f"{name!r} of the policy" if name in outputs else f"{name!r}")
            self.finite.append(finite.all())

    def first(self) -> str | None:
        """The name of the first input that was not finite."""
        good = torch.stack(self.finite).tolist() if self.finite else []
        return next((name for name, fine in zip(self.names, good, strict=True) if not fine), None)
