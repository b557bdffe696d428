"""Settings shared by all rewards of this package: which CLIP, and how to run it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator

from groupwise.kit.options import PathOrName

LOCAL, HUB = "local-dir:", "hf-hub:"
"""Prefixes of open_clip's names for a folder and for a model of the hub."""


class ClipSettings(BaseModel):
    """Which CLIP is loaded, and how it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: PathOrName = Field(
        min_length=1,
        description="An open_clip architecture, `hf-hub:` and the hub name of an open_clip model, "
        "a folder in open_clip's or transformers' format, or the hub name of a transformers CLIP "
        "(for `aesthetic` also of a SigLIP).",
    )
    pretrained: PathOrName | None = Field(
        default=None,
        description="Weights of an architecture: open_clip's tag, a file, or "
        "`hf-hub:OWNER/NAME/FILE`. All other models have their own.",
    )
    processor: PathOrName | None = Field(
        default=None,
        description="Folder or hub name of a transformers model's tokenizer and image processor; "
        "the model's own if unset.",
    )
    resize: Literal["shortest", "longest", "squash"] | None = Field(
        default=None,
        description="How images are resized to the model's input: fit the shortest edge and crop, "
        "fit the longest and pad, or squash; the model's own way if unset.",
    )
    batch: int = Field(default=32, ge=1, description="Images, or texts, in one forward pass.")
    precision: Literal["float32", "bf16"] = Field(
        default="float32",
        description="Precision of computation; bf16 is autocast, with float32 weights.",
    )
    device: str | None = Field(
        default=None,
        description="Device of the model; if unset that of image tensors, and for PIL images a "
        "CUDA device if there is one.",
    )

    @field_validator("model")
    @classmethod
    def _beside_the_configuration(cls, value: str, info: ValidationInfo) -> str:
        """A path after `local-dir:` is relative to the configuration file, like other paths."""
        if not value.startswith(LOCAL):
            return value
        path: str = TypeAdapter(PathOrName).validate_python(
            value.removeprefix(LOCAL), context=info.context
        )
        return LOCAL + path
