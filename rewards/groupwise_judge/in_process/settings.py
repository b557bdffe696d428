"""Settings of a judge in this process: which model, and how it runs."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit.options import PathOrName


class ModelSettings(BaseModel):
    """Which model is loaded, and how it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: PathOrName = Field(
        min_length=1,
        description="Folder or hub name of a causal or vision-language model of transformers.",
    )
    chat_template: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the model's chat template, such as {enable_thinking: false}.",
    )
    max_length: int | None = Field(
        default=None,
        ge=1,
        description="Longest question, in tokens; the model's context length if unset.",
    )
    max_pixels: int | None = Field(
        default=None,
        ge=1,
        description="Pictures of more pixels are made smaller; unset: as the model's own processor "
        "does.",
    )
    batch: int = Field(default=8, ge=1, description="Questions in one forward pass.")
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="Precision of weights and computation."
    )
    device: str | None = Field(
        default=None, description="Device of the model; if unset a GPU if there is one."
    )
    offload: bool = Field(
        default=False, description="Keep the model in CPU memory between two uses."
    )
