"""Rows: prompts written in Python or in the configuration itself."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise.prompt_source import Row


class Rows:
    """Rows written in Python or in the configuration."""

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        rows: list[dict[str, Any]] = Field(description="the rows, each with a prompt")

    def __init__(self, config: Config) -> None:
        self.rows: Sequence[Row] = config.rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> Row:
        return self.rows[index]
