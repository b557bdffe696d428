"""A reward for images that people prefer: HPSv3, a Qwen2-VL with a head on one token.

Its file has the weights of transformers' own Qwen2-VL, and of the head under `rm_head`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from PIL.Image import Image
from pydantic import Field
from torch import Tensor, nn
from torchvision.transforms.v2 import functional

from groupwise.kit.options import PathOrName
from groupwise_clip import qwen2_vl
from groupwise_clip.aesthetic import head
from groupwise_clip.files import check_file, fetched, read_tensors
from groupwise_clip.images import images_of
from groupwise_clip.texts import texts

TOKEN = "<|Reward|>"
"""What the head reads, of the last layer."""
HEAD = "rm_head."


class HpsV3:
    """How much people would like a picture for its prompt, by HPSv3 (arXiv:2508.03789).

    The mean of the score's Gaussian, about 0 to 15; the head's second number, its spread, is left
    out. The picture is resized to some 200,000 pixels, and stands before the instruction.
    """

    judges = False

    class Config(qwen2_vl.Settings):
        """Settings of the reward `hps_v3`."""

        instruction: str = Field(
            min_length=1,
            description="The text that the model was trained to read, with {text_prompt} in it: "
            "INSTRUCTION and what follows it in hpsv3/dataset/data_collator_qwen.py of the "
            f"authors' package; {TOKEN} is put at its end unless it is there. With another text "
            "values mean nothing.",
        )
        weights: PathOrName = Field(
            default="hf-hub:MizzenAI/HPSv3/HPSv3.safetensors",
            min_length=1,
            description="The authors' file, or `hf-hub:OWNER/NAME/FILE`.",
        )
        model: PathOrName = Field(
            default="Qwen/Qwen2-VL-7B-Instruct",
            min_length=1,
            description="Folder or hub name of the configuration and the processor.",
        )
        pixels: int = Field(
            default=256 * 28 * 28, ge=1, description="Pixels that pictures are resized to."
        )
        batch: int = Field(default=8, ge=1, description="Images in one forward pass.")

    def __init__(self, config: Config) -> None:
        """Loads nothing. Raises ValueError for a file that does not exist."""
        self.config = config
        check_file(config.weights, setting="weights")
        self._device = torch.device(
            config.device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
        self._loaded: tuple[Any, Any, nn.Sequential, int] | None = None

    def load(self) -> None:
        """Loads the model, if needed. Raises ValueError where that fails."""
        if self._loaded is None:
            self._loaded = self._load()

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]
    ) -> list[float | None]:
        """Returns a value for each image: `pixels` [3, H, W] if provided, else completions."""
        self.load()
        captions = texts(prompts, columns, self.config.text, reward="hps_v3")
        images = images_of(completions, columns)
        values: list[float | None] = [None] * len(images)
        rows = [row for row, caption in enumerate(captions) if caption is not None]
        for start in range(0, len(rows), self.config.batch):
            batch = rows[start : start + self.config.batch]
            scores = self._values(
                [_picture(images[row]) for row in batch], [str(captions[row]) for row in batch]
            )
            for row, value in zip(batch, scores.tolist(), strict=True):
                values[row] = value
        return values

    def _values(self, images: Sequence[Image], captions: Sequence[str]) -> Tensor:
        assert self._loaded is not None
        model, processor, score, token = self._loaded
        inputs = processor(
            text=[self._chat(processor, caption) for caption in captions],
            images=list(images),
            padding=True,
            padding_side="right",
            return_tensors="pt",
        ).to(self._device)
        inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
        states = model.model(**inputs, use_cache=False).last_hidden_state
        values: Tensor = score(states[inputs["input_ids"] == token].float())[:, 0]
        return values

    def _chat(self, processor: Any, caption: str) -> str:
        """The text of one question."""
        text = qwen2_vl.caption_in(self.config.instruction, caption)
        text = text if text.endswith(TOKEN) else text + TOKEN
        content = [{"type": "image"}, {"type": "text", "text": text}]
        rendered: str = processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return rendered

    def _load(self) -> tuple[Any, Any, nn.Sequential, int]:
        """Model, processor, head, and the id of its token."""
        path = self.config.weights
        tensors = read_tensors(fetched(path, setting="weights"))
        own = {
            key.removeprefix(HEAD): each.float()
            for key, each in tensors.items()
            if key.startswith(HEAD)
        }
        rest = {key: each for key, each in tensors.items() if not key.startswith(HEAD)}
        if not own or not qwen2_vl.has_embeddings(rest):
            embeddings = qwen2_vl.EMBEDDINGS
            raise ValueError(f"{path!r} does not hold HPSv3: no {HEAD}*, or no *{embeddings}")
        model, processor, (token,) = qwen2_vl.load(
            self.config.model,
            rest,
            [TOKEN],
            precision=self.config.precision,
            device=self._device,
            source=path,
        )
        _resize(processor, self.config.pixels)
        score = head(own, path, "relu", outputs=2).to(self._device)
        return model, processor, score, token


def _resize(processor: Any, pixels: int) -> None:
    """Let the processor resize every picture to about so many pixels."""
    # transformers' names for the least and the largest number of pixels.
    processor.image_processor.size = {"shortest_edge": pixels, "longest_edge": pixels}


def _picture(image: Tensor | Image) -> Image:
    if isinstance(image, Image):
        return image.convert("RGB")
    picture: Image = functional.to_pil_image(image.detach().float().clamp(0, 1).cpu())
    return picture
