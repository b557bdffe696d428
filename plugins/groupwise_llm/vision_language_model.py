"""VisionLanguageModel: a language model that also reads pictures; its decisions are tokens."""

from typing import ClassVar, Literal

from pydantic import Field

from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings


class VisionSettings(Settings):
    """Which model, how to load it, how it reads pictures, and how it samples."""

    vision: Literal["frozen", "trained"] = Field(
        "frozen",
        description="whether the vision tower and its projector are trained with the rest; with "
        "`lora` that is by adapters",
    )
    min_pixels: int | None = Field(
        None, ge=1, description="smaller pictures are enlarged to so many pixels"
    )
    max_pixels: int | None = Field(
        None, ge=1, description="larger pictures are reduced to so many pixels"
    )
    feature_tokens: int = Field(
        65536,
        ge=0,
        description="most tokens of pictures whose features are kept while the tower does not "
        "change",
    )


class VisionLanguageModel(LanguageModel):
    """Vision-language models of transformers."""

    Config: ClassVar[type[Settings]] = VisionSettings
