"""A reward for images that people prefer: HPSv3, a Qwen2-VL with a head on one token.

The package `hpsv3` pins transformers of 2025. Its file has the weights of transformers' own
Qwen2-VL, and of the head under `rm_head`.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from PIL.Image import Image
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn
from torchvision.transforms.v2 import functional

from groupwise.kit.options import PathOrName
from groupwise_clip.aesthetic import head
from groupwise_clip.files import check_file, fetched, quiet, read_tensors, reason
from groupwise_clip.images import images_of
from groupwise_clip.texts import texts

TOKEN = "<|Reward|>"
"""What the head reads, of the last layer."""
HEAD, EMBEDDINGS = "rm_head.", "embed_tokens.weight"
PLACES = ("{text_prompt}", "{prompt}")
"""What stands for the prompt in the instruction: the authors' name of it, and ours."""


class HpsV3:
    """How much people would like a picture for its prompt, by HPSv3 (arXiv:2508.03789).

    The mean of the score's Gaussian, about 0 to 15; the head's second number, its spread, is left
    out. The picture is resized to some 200,000 pixels, and stands before the instruction.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `hps_v3`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

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
        text: str | None = Field(
            default=None, description="Column with the texts; null: the prompt itself."
        )
        pixels: int = Field(
            default=256 * 28 * 28, ge=1, description="Pixels that pictures are resized to."
        )
        batch: int = Field(default=8, ge=1, description="Images in one forward pass.")
        precision: Literal["float32", "bf16"] = Field(
            default="bf16", description="Of the model's weights; the head's is float32."
        )
        device: str | None = Field(
            default=None, description="Device of the model; if unset a GPU if there is one."
        )

        @field_validator("instruction")
        @classmethod
        def _has_a_place(cls, value: str) -> str:
            if not any(place in value for place in PLACES):
                raise ValueError(f"expected a text with {PLACES[0]} in it, found {value!r:.60}")
            return value

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
        """Returns a value for each image: `images` [3, H, W] if provided, else completions."""
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
        """The text of one question; control tokens in the caption are broken up."""
        text = self.config.instruction
        for place in PLACES:
            text = text.replace(place, caption.replace("<|", "< |"))
        text = text if text.endswith(TOKEN) else text + TOKEN
        content = [{"type": "image"}, {"type": "text", "text": text}]
        rendered: str = processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return rendered

    def _load(self) -> tuple[Any, Any, nn.Sequential, int]:
        """Model, processor, head, and the id of its token."""
        from transformers import AutoConfig, AutoProcessor, Qwen2VLForConditionalGeneration

        name, path = self.config.model, self.config.weights
        tensors = read_tensors(fetched(path, setting="weights"))
        own = {
            key.removeprefix(HEAD): each.float()
            for key, each in tensors.items()
            if key.startswith(HEAD)
        }
        rest = {key: each for key, each in tensors.items() if not key.startswith(HEAD)}
        entries = [len(each) for key, each in rest.items() if key.endswith(EMBEDDINGS)]
        if not own or not entries:
            raise ValueError(f"{path!r} does not hold HPSv3: no {HEAD}*, or no *{EMBEDDINGS}")
        try:
            with quiet():
                config = AutoConfig.from_pretrained(name, trust_remote_code=False)
                config.get_text_config().vocab_size = entries[0]  # one token more than Qwen2-VL's
                processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
                _resize(processor, self.config.pixels)
                processor.tokenizer.add_special_tokens({"additional_special_tokens": [TOKEN]})
                dtype = {"float32": torch.float32, "bf16": torch.bfloat16}[self.config.precision]
                model, report = Qwen2VLForConditionalGeneration.from_pretrained(
                    None, config=config, state_dict=rest, dtype=dtype, output_loading_info=True
                )
        except Exception as error:  # transformers and the hub raise a dozen kinds
            raise ValueError(f"`model`: {name!r} cannot be loaded: {reason(error)}") from error
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"{path!r} lacks {len(missing)} weights, {missing[0]!r} for example")
        score = head(own, path, "relu", outputs=2).to(self._device)
        model = model.eval().requires_grad_(requires_grad=False).to(self._device)
        return model, processor, score, processor.tokenizer.convert_tokens_to_ids(TOKEN)


def _resize(processor: Any, pixels: int) -> None:
    """Let the processor resize every picture to about so many pixels."""
    # transformers' names for the least and the largest number of pixels.
    processor.image_processor.size = {"shortest_edge": pixels, "longest_edge": pixels}


def _picture(image: Tensor | Image) -> Image:
    if isinstance(image, Image):
        return image.convert("RGB")
    picture: Image = functional.to_pil_image(image.detach().float().clamp(0, 1).cpu())
    return picture
