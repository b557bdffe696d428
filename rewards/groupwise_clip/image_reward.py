"""A reward for images that people prefer: ImageReward, a BLIP trained on rankings."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from groupwise.kit.options import PathOrName
from groupwise_clip.blip import Blip
from groupwise_clip.files import check_file, fetched, quiet, read_tensors, reason
from groupwise_clip.images import Framing, images_of, pixels
from groupwise_clip.texts import texts

MEAN, STD = 0.16717362830052426, 1.0333394966054072
"""Of the head's values over the authors' data: `ImageReward.py` of their package."""
LONGEST = 35
"""Tokens of a text that are read."""


class ImageReward:
    """How much people would like a picture for its prompt, by ImageReward (arXiv:2304.05977).

    (value of the head - mean) / std, about -2 to 2. The picture's shortest edge is resized to 224
    pixels and its middle cut out; of the text the first 35 tokens are read.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `image_reward`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        weights: PathOrName = Field(
            default="hf-hub:THUDM/ImageReward/ImageReward.pt",
            min_length=1,
            description="The authors' file, or `hf-hub:OWNER/NAME/FILE`; all sizes follow from it.",
        )
        tokenizer: PathOrName = Field(
            default="google-bert/bert-base-uncased",
            min_length=1,
            description="Folder or hub name of BERT's tokenizer, uncased.",
        )
        text: str | None = Field(
            default=None, description="Column with the texts; null: the prompt itself."
        )
        batch: int = Field(default=32, ge=1, description="Images in one forward pass.")
        precision: Literal["float32", "bf16"] = Field(
            default="float32",
            description="Precision of computation; bf16 is autocast, with float32 weights.",
        )
        device: str | None = Field(
            default=None, description="Device of the model; if unset a GPU if there is one."
        )

    def __init__(self, config: Config | None = None) -> None:
        """Loads nothing. Raises ValueError for a file that does not exist."""
        self.config = config or self.Config()
        check_file(self.config.weights, setting="weights")
        self._device = torch.device(
            self.config.device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
        self._model: Blip | None = None
        self._words: Any = None

    def load(self) -> None:
        """Loads model and tokenizer, if needed. Raises ValueError where that fails."""
        self._loaded()

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]
    ) -> list[float | None]:
        """Returns a value for each image: `pixels` [3, H, W] if provided, else completions."""
        captions = texts(prompts, columns, self.config.text, reward="image_reward")
        images = images_of(completions, columns)
        values: list[float | None] = [None] * len(images)
        rows = [row for row, caption in enumerate(captions) if caption is not None]
        for start in range(0, len(rows), self.config.batch):
            batch = rows[start : start + self.config.batch]
            scored = self._values([images[row] for row in batch], [captions[row] for row in batch])
            for row, value in zip(batch, scored.tolist(), strict=True):
                values[row] = value
        return values

    def _values(self, images: Sequence[Any], captions: Sequence[str | None]) -> Tensor:
        model, words = self._loaded()
        # CLIP's mean and std, which BLIP has, too.
        framing = Framing(
            size=(model.edge, model.edge),
            mean=(0.48145466, 0.4578275, 0.40821073),
            std=(0.26862954, 0.26130258, 0.27577711),
        )
        framed = pixels(images, framing, self._device)
        tokens = words(
            list(captions), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        ).to(self._device)
        with torch.autocast(
            self._device.type, torch.bfloat16, enabled=self.config.precision == "bf16"
        ):
            raw = model(framed, tokens["input_ids"], tokens["attention_mask"])
        return (raw.float() - MEAN) / STD

    def _loaded(self) -> tuple[Blip, Any]:
        if self._model is None:
            from transformers import AutoTokenizer

            path = self.config.weights
            model = Blip(read_tensors(fetched(path, setting="weights")), path)
            try:
                with quiet():
                    self._words = AutoTokenizer.from_pretrained(
                        self.config.tokenizer, trust_remote_code=False
                    )
            except Exception as error:  # transformers and the hub raise a dozen kinds
                raise ValueError(
                    f"`tokenizer`: {self.config.tokenizer!r} cannot be loaded: {reason(error)}"
                ) from error
            entries = model.text.config.vocab_size
            if not entries / 2 < len(self._words) <= entries:
                raise ValueError(
                    f"`tokenizer`: {self.config.tokenizer!r} has {len(self._words)} entries, the "
                    f"weights have {entries}"
                )
            self._model = model.to(self._device)
        return self._model, self._words
