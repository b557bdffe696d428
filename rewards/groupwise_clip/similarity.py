"""A reward for images that match their prompt, by CLIP's cosine similarity."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from groupwise_clip.images import images_of
from groupwise_clip.model import Clip
from groupwise_clip.settings import ClipSettings
from groupwise_clip.texts import texts


class ClipSimilarity:
    """How well a picture fits its text: scale * cosine of CLIP features; None without a text.

    CLIPScore (arXiv:2104.08718) is 2.5 * max(cosine, 0) with ViT-B/32 and "A photo depicts " before
    each caption. The plain cosine ranks the images of a prompt in the same order, and a group has
    one prompt.
    """

    judges = False

    class Config(ClipSettings):
        """Settings of the reward `clip_similarity`."""

        text: str | None = Field(
            default=None, description="Column with the texts; null: the prompt itself."
        )
        scale: float = Field(default=1.0, allow_inf_nan=False, description="Factor of the cosine.")

    def __init__(self, config: Config) -> None:
        self.config, self.clip = config, Clip(config)

    def load(self) -> None:
        """Loads the model, if needed."""
        self.clip.load()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each image: `pixels` [3, H, W] if provided, else completions."""
        captions = texts(prompts, columns, self.config.text, reward="clip_similarity")
        cosines = self.clip.cosines(images_of(completions, columns), captions)
        return [None if cosine is None else cosine * self.config.scale for cosine in cosines]
