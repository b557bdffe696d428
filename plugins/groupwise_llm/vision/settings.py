"""VisionSettings: the configuration of the vision-language policy."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from groupwise_llm.settings import Settings
from groupwise_llm.vision.loading import family_class


class VisionSettings(Settings):
    """Which model, how to load it, how it reads pictures, and how it samples."""

    auto: ClassVar[str] = "AutoModelForImageTextToText"
    frozen_note: ClassVar[str] = (
        "weights that read pictures are not trained; to train them, set policy.vision: trained"
    )
    vision: Literal["frozen", "trained"] = Field(
        "frozen",
        description="whether the vision tower and its projector are trained with the rest, with "
        "`lora` by adapters of their own; features of a frozen one are computed once",
    )
    min_pixels: int | None = Field(
        None, ge=1, description="smaller pictures are enlarged to so many pixels"
    )
    max_pixels: int | None = Field(
        None, ge=1, description="larger pictures are reduced to so many pixels"
    )
    fetch_pictures: bool = Field(
        False, description="whether pictures of rows may be http(s) addresses, which are fetched"
    )
    feature_tokens: int = Field(
        65536,
        ge=0,
        description="most tokens of pictures whose features are kept while the tower does not "
        "change",
    )

    @model_validator(mode="after")
    def _pictures_stay_whole(self) -> Self:
        if self.long_prompts == "cut":
            raise ValueError(
                "long_prompts: cut would cut pictures, too; use skip, or a smaller max_pixels"
            )
        return self

    def trained_parts(self, model: Any) -> Sequence[Any]:
        if self.vision == "frozen":
            return ()
        return family_class(model.config)(None, model.config).towers(model)
