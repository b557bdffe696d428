"""Prompts: where the mass starts and where it is to go."""

import random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Targets:
    """Row i is a function of (seed, i), so there is nothing to store and nothing to shuffle twice.

    A row has `start` and `goal`, [x, y] each, and a `prompt` that says the same in words.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        size: int = Field(default=10_000, ge=1, description="how many rows there are")
        seed: int = Field(default=0, ge=0, description="of the rows")

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __len__(self) -> int:
        return self.config.size

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        draw = random.Random(f"{self.config.seed}/{index}")
        # Two decimals: the prompt then tells the row apart from every other.
        x, y, to_x, to_y = (round(draw.uniform(-0.8, 0.8), 2) for _ in range(4))
        return {
            "prompt": f"from ({x:.2f}, {y:.2f}) to ({to_x:.2f}, {to_y:.2f})",
            "start": [x, y],
            "goal": [to_x, to_y],
        }
