"""EntropyBonus: keeps the policy from becoming certain too early."""

from pydantic import Field

from groupwise.algorithms.parts.composed import Composed, Options


class EntropyBonus(Composed):
    """Subtracts the policy's entropy, times a weight, from the loss."""

    class Config(Options):
        entropy: float = Field(0.0, description="weight of an entropy bonus")

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.entropy = self.config.entropy
        if self.entropy:
            self.needs = self.needs | {"entropy"}
