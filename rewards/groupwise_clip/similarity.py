"""How well an image fits its prompt."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from groupwise_clip.images import images_of
from groupwise_clip.model import Clip
from groupwise_clip.settings import ClipSettings
from groupwise_clip.texts import texts


class ClipSimilarity:
    """The cosine of the image's and the text's CLIP features times `scale`; None without a text.

    CLIPScore (arXiv:2104.08718) is 2.5 * max(cosine, 0) of ViT-B/32, with "A photo depicts " before
    each caption. The bare cosine orders images of one prompt alike, and groups are of one prompt.
    """

    judges = False

    class Config(ClipSettings):
        """Settings of the reward `clip_similarity`."""

        text: str | None = Field(
            default=None, description="Column with the texts; null: the prompt itself."
        )
        scale: float = Field(
            default=1.0, allow_inf_nan=False, description="What the cosine is multiplied by."
        )

    def __init__(self, config: Config) -> None:
        self.config, self.clip = config, Clip(config)

    def load(self) -> None:
        """Loads the model, unless that is done."""
        self.clip.load()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each image: of `images` [3, H, W] if stated, else of completions."""
        meant = texts(prompts, columns, self.config.text, reward="clip_similarity")
        cosines = self.clip.cosines(images_of(completions, columns), meant)
        return [None if cosine is None else cosine * self.config.scale for cosine in cosines]
