"""Qwen-Image-Edit 2509 and 2511."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as published
from PIL import Image
from pydantic import Field
from torch import Tensor

from groupwise_flow.adapter import MASK, REFERENCES, EditingAdapter, Limit, Row
from groupwise_flow.adapters.qwen_image import QwenImageAdapter

PLACE = "Picture {}: <|vision_start|><|image_pad|><|vision_end|>"
"""What stands for a picture in the prompt, as in the pipeline."""
READ = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")
"""What the text encoder gets of the processor's output, as in the pipeline; the last two, of
pictures, are None without."""


class QwenImageEditPlusAdapter(EditingAdapter, QwenImageAdapter):
    """Qwen-Image-Edit 2509 and 2511, which read pictures twice.

    A vision-language model reads prompt and pictures, the transformer the pictures' latents, both
    in other sizes than the results', of constant area.
    """

    class Config(EditingAdapter.Config):
        reference_pixels: int | None = Field(
            None,
            ge=1,
            description="pixels of a picture whose latents the transformer reads; if unset the "
            "pipeline's, 1024 x 1024",
        )

    pipelines = ("QwenImageEditPlusPipeline",)

    # ---- prompts

    def limit(self) -> Limit:
        """`prompt_tokens`, with what the template adds, but for the tokens of pictures."""
        marks = self._marks
        template = self.pipeline.prompt_template_encode
        return Limit(
            self.pipeline.tokenizer,
            self.prompt_tokens,
            template=lambda prompt: template.format(marks + prompt),
            uncounted=self.pipeline.prompt_template_encode_start_idx,
        )

    @property
    def _marks(self) -> str:
        return "".join(PLACE.format(number + 1) for number in range(self.options.references))

    @property
    def tokens(self) -> int:
        """With those of pictures, each of which the prompt's length has as one."""
        return self.prompt_tokens + self.options.references * (self._picture_tokens - 1)

    @cached_property
    def _picture_tokens(self) -> int:
        processor = self.pipeline.processor.image_processor
        grey = self._seen(Image.new("RGB", (self.width, self.height)))
        grid = processor(images=[grey], return_tensors="pt")["image_grid_thw"]
        return int(grid.prod()) // int(processor.merge_size) ** 2

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        pipeline = self.pipeline
        pictures = [self._seen(picture) for row in rows for picture in self.pictures(row)]
        template = pipeline.prompt_template_encode
        inputs = pipeline.processor(
            text=[template.format(self._marks + self._cut(row["prompt"])) for row in rows],
            images=pictures or None,
            padding=True,
            padding_side="right",
            return_tensors="pt",
        ).to(self.device)
        read = {name: inputs.get(name) for name in READ}
        if self.device.type == "meta":  # for estimates: the vision tower reads values on the host
            read |= dict.fromkeys(READ[2:])
        states = pipeline.text_encoder(**read, output_hidden_states=True).hidden_states[-1]
        start = pipeline.prompt_template_encode_start_idx
        return {
            "embeds": states[:, start:],
            MASK: inputs["attention_mask"][:, start:],
            REFERENCES: self.references(rows),
        }

    def _cut(self, prompt: str) -> str:
        """A prompt without what is too long, which reaches here with `long_prompts: cut`: the
        template behind it stays."""
        limit = self.limit()
        if not limit.too_long([prompt]):
            return prompt
        words = self.pipeline.tokenizer
        room = max(0, limit.most - limit.lengths([""])[0])
        text: str = words.decode(words(prompt, verbose=False).input_ids[:room])
        return text

    # ---- pictures

    def _seen(self, picture: Image.Image) -> Image.Image:
        """A picture as large as the vision-language model reads it."""
        width, height = self._size_of(published.CONDITION_IMAGE_SIZE)
        image: Image.Image = self.pipeline.image_processor.resize(picture, height, width)
        return image

    def _size_of(self, area: int) -> tuple[int, int]:
        width, height = published.calculate_dimensions(area, self.width / self.height)
        return int(width), int(height)

    @property
    def reference_size(self) -> tuple[int, int]:
        width, height = self._size_of(self.options.reference_pixels or published.VAE_IMAGE_SIZE)
        return height, width

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        rows, columns = (n // self.token_side for n in self.reference_size)
        return [*super().shapes, *[(1, rows, columns)] * self.options.references]

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """As one frame: the autoencoder is one for videos."""
        latents = self.pipeline._encode_vae_image(pixels.unsqueeze(2), generator=None)
        packed: Tensor = self.pipeline._pack_latents(latents, *latents.squeeze(2).shape)
        return packed

    @property
    def call_code(self) -> Sequence[str]:
        """The pipeline's constant, where another is set."""
        if self.options.reference_pixels is None:
            return ()
        constant = f"pipeline_qwenimage_edit_plus.VAE_IMAGE_SIZE = {self.options.reference_pixels}"
        return (
            "from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus",
            constant,
        )
