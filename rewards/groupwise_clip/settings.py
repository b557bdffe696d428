"""What every reward of this package is told: which CLIP, and how to compute it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator

from groupwise.options import PathOrName

LOCAL, HUB = "local-dir:", "hf-hub:"
"""Prefixes of open_clip's names for a folder and for a model of the hub."""


class ClipSettings(BaseModel):
    """Which CLIP is loaded, and how it is computed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: PathOrName = Field(
        min_length=1,
        description="An open_clip architecture, `hf-hub:` and the hub name of an open_clip model, "
        "a folder in open_clip's or transformers' format, or the hub name of a transformers CLIP.",
    )
    pretrained: PathOrName | None = Field(
        default=None,
        description="The weights of an architecture: open_clip's tag, a file, or "
        "`hf-hub:OWNER/NAME/FILE`. All other models bring theirs.",
    )
    processor: PathOrName | None = Field(
        default=None,
        description="Folder or hub name of a transformers model's tokenizer and image processor; "
        "the model's own if unset.",
    )
    resize: Literal["shortest", "longest", "squash"] | None = Field(
        default=None,
        description="How images get the model's size: fit the shortest edge and crop, fit the "
        "longest and pad, or squash; as the model states if unset.",
    )
    batch: int = Field(default=32, ge=1, description="Images, or texts, in one forward pass.")
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="bf16 computes under autocast over float32 weights."
    )
    device: str | None = Field(
        default=None,
        description="Where it is computed; if unset where the images are, and for PIL images on "
        "a CUDA device if there is one.",
    )

    @field_validator("model")
    @classmethod
    def _beside_the_configuration(cls, value: str, info: ValidationInfo) -> str:
        """A relative path behind `local-dir:` is relative to the configuration file, too."""
        if not value.startswith(LOCAL):
            return value
        path: str = TypeAdapter(PathOrName).validate_python(
            value.removeprefix(LOCAL), context=info.context
        )
        return LOCAL + path
