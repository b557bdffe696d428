"""A penalty for completions that come close to a length limit, or exceed it."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise_verifiable.columns import column


class SoftOverlong:
    """0.0 up to `max_length - cache` tokens, then linearly down to -1.0 at `max_length` and beyond.

    Equation 13 of DAPO, arXiv:2503.14476; TRL's `get_soft_overlong_punishment`.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `soft_overlong`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        max_length: int = Field(ge=1, description="Tokens from which the value is -1.0.")
        cache: int = Field(ge=0, description="Tokens before `max_length` over which it falls.")

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.cache > self.max_length:
                raise ValueError(
                    f"cache ({self.cache}) must not exceed max_length ({self.max_length})"
                )
            return self

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        tokens = column(columns, "completion_ids", reward="soft_overlong")
        return [self._score(len(ids)) for ids in tokens]

    def _score(self, length: int) -> float:
        free = self.config.max_length - self.config.cache
        if length <= free:
            return 0.0
        if length > self.config.max_length:
            return -1.0
        return (free - length) / self.config.cache
