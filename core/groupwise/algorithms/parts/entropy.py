"""EntropyBonus: keeps the policy from becoming certain too early."""

from typing import Any

from pydantic import Field

from groupwise.algorithms.parts.part import Options, Part


class EntropyBonus(Part):
    """Subtracts the policy's entropy, times a weight, from the loss."""

    slot = "entropy"

    class Config(Options):
        entropy: float = Field(0.0, description="weight of an entropy bonus")

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.weight = self.config.entropy
        if self.weight:
            self.needs = frozenset({"entropy"})
