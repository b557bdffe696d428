"""EditingAdapter: the base of adapters for pipelines that read pictures beside a prompt."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from PIL import Image, ImageOps
from pydantic import Field
from torch import Tensor

from groupwise import attachments
from groupwise.kit.errors import UserError
from groupwise.kit.section import Section
from groupwise_flow.adapter.adapter import Adapter
from groupwise_flow.adapter.conditions import UNCONDITIONAL, Conditions, Row
from groupwise_messages.attached import instruction_of, pictures_of
from groupwise_messages.images import ImageError, measured, opened

REFERENCES = "references"
"""The name of the condition with the latents of a row's pictures."""


class EditingAdapter(Adapter):
    """A diffusers pipeline that edits pictures: each row has so many beside its prompt.

    Every picture is brought to the size of the results, so that all rows have as many tokens. The
    unconditional pass reads the same ones. `encode` gets `prompt`, a text, and `images`, a list of
    what rows hold, which `pictures` opens.
    """

    class Config(Section):
        """Which pictures are read, and how they get the size of the results."""

        references: int = Field(1, ge=0, description="pictures that each row has")
        fit: Literal["crop", "pad"] = Field(
            "crop",
            description="how a picture of another shape gets that of the results: its middle is "
            "cut out, or white is put at its sides",
        )

    reads = ("prompt", "images")
    rows_per_call: ClassVar[int | None] = 1

    # ---- rows

    def columns(self, row: Row) -> Row:
        """The prompt in words, and the pictures, those of files as their bytes."""
        if not self.options.references:
            return {"prompt": self.text(row), "images": []}
        return {
            "prompt": self.text(row),
            "images": [*map(attachments.content, pictures_of(row))],
        }

    def text(self, row: Row) -> str:
        return super().text({**row, "prompt": instruction_of(row["prompt"])})

    def check_row(self, row: Row) -> None:
        """Raise UserError for another number of pictures, and for one that cannot be opened."""
        own, expected = pictures_of(row), self.options.references
        if expected and len(own) != expected:
            name = type(self.pipeline).__name__
            hint = "if another column has them, name it: prompts.image"
            if own:
                hint = f"if all rows have so many, set policy.adapter: {{name: {name}, references: "
                hint += f"{len(own)}}}"
            raise UserError(
                f"{self._place(row)}: found {len(own)} pictures (columns `image` or `images`, or "
                f"parts of messages), expected {expected}; {hint}"
            )
        for value in own if expected else ():
            try:
                measured(value)
            except ImageError as error:
                raise UserError(f"{self._place(row)}: {error}") from error

    def _place(self, row: Row) -> str:
        own: str | None = getattr(row, "place", None)
        return own or f"prompts, the row {str(self.text(row))[:80]!r}"

    def example_row(self) -> Row:
        grey = Image.new("RGB", (self.width, self.height), "grey")
        return {"prompt": "a", "images": [grey] * self.options.references}

    def unconditional_row(self, row: Row, negative_prompt: str) -> Row:
        return {**self.columns(row), "prompt": negative_prompt, UNCONDITIONAL: True}

    # ---- pictures

    def pictures(self, row: Row) -> list[Image.Image]:
        """The row's pictures in RGB, each of `width` x `height` pixels. Raises UserError."""
        try:
            return [self._fitted(opened(value)) for value in row["images"]]
        except ImageError as error:
            raise UserError(f"{self._place(row)}: {error}") from error

    def _fitted(self, image: Image.Image) -> Image.Image:
        size = (self.width, self.height)
        if self.options.fit == "pad":
            return ImageOps.pad(image, size, color="white")
        return ImageOps.fit(image, size)

    @property
    def fitting_code(self) -> str:
        """The expression by which a card's code brings `image` to the size of the results."""
        size = f"({self.width}, {self.height})"
        if self.options.fit == "pad":
            return f'ImageOps.pad(image, {size}, color="white")'
        return f"ImageOps.fit(image, {size})"

    @torch.no_grad()
    def references(self, rows: Sequence[Row]) -> Tensor | None:
        """The latents [n, tokens, channels] of all pictures of each of n rows, as the model reads
        them behind its own; None without pictures."""
        if not self.options.references:
            return None
        return torch.cat([self._tokens(row) for row in rows])

    def _tokens(self, row: Row) -> Tensor:
        vae = self.pipeline.vae
        pixels = [self.preprocess(picture) for picture in self.pictures(row)]
        encoded = [self.encode_pixels(one.to(self.device, vae.dtype)) for one in pixels]
        return torch.cat(encoded, dim=1).float()

    def preprocess(self, picture: Image.Image) -> Tensor:
        """A fitted picture as pixels [1, 3, rows, columns] in [-1, 1], by the pipeline's own
        processor."""
        pixels: Tensor = self.pipeline.image_processor.preprocess(picture, *self.reference_size)
        return pixels

    @property
    def reference_size(self) -> tuple[int, int]:
        """Height and width, in pixels, at which a picture is encoded."""
        return self.height, self.width

    @abstractmethod
    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Latents [1, tokens, channels] of pixels [1, 3, rows, columns] in [-1, 1]."""

    # ---- the pipeline's own call

    def call_rows(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The arguments of rows, of which a call takes one."""
        (row,) = rows
        own = {"image": self.pictures(self.columns(row))} if self.options.references else {}
        return {"prompt": [self.text(row)], **own}


def beside(latents: Tensor, conditions: Conditions) -> Tensor:
    """Latents [n, tokens, channels] of results, and behind them those of references."""
    own = conditions.get(REFERENCES)
    return latents if own is None else torch.cat([latents, own.to(latents.dtype)], dim=1)
