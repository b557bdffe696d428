"""Average: an exponential moving average of the trained weights, to evaluate and save by."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from groupwise.storage.checkpoint import check_same


class Average:
    """Shadows of the trained parameters: shadow <- decay x shadow + (1 - decay) x parameter.

    every: optimizer updates from one averaging to the next.
    """

    def __init__(self, model: nn.Module, *, decay: float, every: int) -> None:
        self.decay, self.every, self.updates = decay, every, 0
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.parameters: list[Tensor] = [p for _, p in trained]
        self.shadows = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """To be called after each optimizer update."""
        self.updates += 1
        if self.updates % self.every == 0:
            torch._foreach_lerp_(self.shadows, self.parameters, 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The averaged weights in the model's place; its own come back, after an exception, too."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, shadow in zip(self.parameters, self.shadows, strict=True):
            own = parameter.clone()
            parameter.copy_(shadow)
            shadow.copy_(own)

    def tensors(self) -> dict[str, Tensor]:
        """The shadows by the names of their parameters, and how many updates they have seen."""
        shadows = dict(zip(self.names, self.shadows, strict=True))
        return {**shadows, "updates": torch.tensor(self.updates)}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` returned. Raises UserError where it is of another model."""
        check_same(self.tensors(), tensors)
        for name, shadow in zip(self.names, self.shadows, strict=True):
            shadow.copy_(tensors[name])
        self.updates = int(tensors["updates"])
