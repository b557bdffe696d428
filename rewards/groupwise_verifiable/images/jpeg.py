"""A reward for an image's size as a JPEG file, a measure of its detail."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise_verifiable.images.pixels import Pixels, picture, pixels

_LONGEST_EDGE = 65500  # of libjpeg; the format's own limit is a little higher


class JpegSize:
    """The kilobytes of an image as JPEG; with `direction: smaller` negated.

    The compressibility and incompressibility of DDPO, arXiv:2305.13301, section 5.1: quality 95,
    1 kB = 1000 bytes, the header of about 0.6 kB included.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `jpeg_size`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        direction: Literal["smaller", "larger"] = Field(
            default="smaller", description="Whether smaller or larger files are better."
        )
        quality: int = Field(default=95, ge=1, le=100, description="JPEG quality, as in PIL.")

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Returns a value for each image."""
        sign = -1 if self.config.direction == "smaller" else 1
        images = pixels(completions, reward="jpeg_size")
        for index, image in enumerate(images):
            if max(image.shape) > _LONGEST_EDGE:
                raise ValueError(
                    f"reward 'jpeg_size', completion {index}: JPEG has no room for more than "
                    f"{_LONGEST_EDGE} pixels in a line, found {image.shape[1]} x {image.shape[0]}"
                )
        return [sign * self._kilobytes(image) for image in images]

    def _kilobytes(self, image: Pixels) -> float:
        buffer = BytesIO()
        picture(image).save(buffer, format="JPEG", quality=self.config.quality)
        return buffer.tell() / 1000
