"""The length of a completion as a plain number: for a constraint, a metric or a weighted reward."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise_messages.completion import content
from groupwise_verifiable.columns import column


class TokenCount:
    """Number of tokens, or characters, of a completion: to put a price or a bound on length.

    The token that ends the completion counts, too.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `token_count`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        unit: Literal["tokens", "characters"] = Field(
            default="tokens", description="What is counted."
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        if self.config.unit == "characters":
            return [float(len(content(completion))) for completion in completions]
        return [float(len(ids)) for ids in column(columns, "completion_ids", reward="token_count")]
