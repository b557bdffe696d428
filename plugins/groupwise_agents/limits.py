"""Limits: how long a conversation with tools may become."""

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """The options that all environments with tools share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    turns: int = Field(
        8,
        ge=1,
        description="the most completions of an episode; calls of the last one are not made",
    )
    calls: int = Field(
        32, ge=1, description="the most calls of an episode; further ones are answered by an error"
    )
    answer_tokens: int = Field(
        512, ge=1, description="the most tokens of a tool's answer, which is cut there with a mark"
    )
    deadline: float = Field(
        30.0,
        gt=0,
        description="seconds for a call, after which the model reads that there is no answer",
    )
