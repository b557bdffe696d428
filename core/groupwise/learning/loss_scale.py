"""LossScale: the factor on the loss of a policy whose gradients are computed in float16."""

from typing import Any

import torch

FIRST = 2.0**24
"""The scale at the start. Gradients of less than 6e-8 / scale are 0 in float16; at torch's 2^16
a good share of those of an image model's first steps were."""
GROWS_AFTER = 32
"""Updates without overflow after which the scale is doubled."""


class LossScale(torch.amp.GradScaler):
    """torch's GradScaler, for updates that are repeated after an overflow with half the scale.

    So a scale that is too high costs backward passes and never an update, and it can begin high and
    grow soon. Dynamic loss scaling: Micikevicius et al., "Mixed Precision Training",
    arXiv:1710.03740, section 3.2.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type, init_scale=FIRST, growth_interval=GROWS_AFTER)
        self._before: float | None = None

    def make_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's step with finite gradients; the scale may grow."""
        self.step(optimizer)
        self.update()
        self._before = None

    def halve(self) -> bool:
        """Halve the scale after gradients that are not finite.

        False if the scale is not the reason, so that repeating the update would not help: gradients
        overflow even at scale 1, or none did and only their norm does. The scale is then that
        before the update.
        """
        scale = self.get_scale()
        self._before = self._before or scale
        self.update()
        if 1 <= self.get_scale() < scale:
            return True
        self.restore()
        return False

    def restore(self) -> None:
        """Set the scale to that before the update, whose gradients are not finite at any scale."""
        self.update(self._before or self.get_scale())
        self._before = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the scale; how soon it grows stays as it is here."""
        super().load_state_dict({**state_dict, "growth_interval": GROWS_AFTER})
