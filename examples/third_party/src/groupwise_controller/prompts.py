"""Prompts: start and goal of the mass."""

import random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Targets:
    """Random rows; row i is a function of (seed, i), so nothing is stored.

    A row has `start` and `goal`, [x, y] each, and a `prompt` with both as text.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        size: int = Field(default=10_000, ge=1, description="number of rows")
        seed: int = Field(default=0, ge=0, description="seed of the rows")

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __len__(self) -> int:
        return self.config.size

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        draw = random.Random(f"{self.config.seed}/{index}")
        # Two decimals, so that the prompt identifies the row.
        x, y, to_x, to_y = (round(draw.uniform(-0.8, 0.8), 2) for _ in range(4))
        return {
            "prompt": f"from ({x:.2f}, {y:.2f}) to ({to_x:.2f}, {to_y:.2f})",
            "start": [x, y],
            "goal": [to_x, to_y],
        }
