"""Video: a completion of a policy for videos, as rewards, judges and pages receive it."""

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from groupwise_messages import animation
from groupwise_messages.pictures import SMALL

USUAL_RATE = 8.0
"""Frames a second where nobody says how many."""


class Video(Sequence[Image.Image]):
    """A sequence of frames of one size, as PIL images that are made when they are asked for.

    pixels: [frames, height, width, 3] uint8, RGB; read-only, and shared by parts of the video.
    rate: frames a second.
    """

    def __init__(self, pixels: NDArray[np.uint8], rate: float = USUAL_RATE) -> None:
        """pixels: is not copied. Raises ValueError for another shape or dtype, or no frame."""
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3 or not len(pixels):
            raise ValueError(
                f"a video is an array [frames, height, width, 3] of uint8 with one frame at least, "
                f"found {list(pixels.shape)} of {pixels.dtype}"
            )
        if not rate > 0:
            raise ValueError(f"rate: a video has more than 0 frames a second, found {rate}")
        self.pixels = pixels.view()
        self.pixels.flags.writeable = False
        self.rate = float(rate)

    @classmethod
    def of(cls, frames: Sequence[Image.Image], rate: float = USUAL_RATE) -> Self:
        """The video of these pictures, which are of one size."""
        return cls(np.stack([np.asarray(frame.convert("RGB")) for frame in frames]), rate)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, in Pillow's order."""
        return self.pixels.shape[2], self.pixels.shape[1]

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self) / self.rate

    def __len__(self) -> int:
        return len(self.pixels)

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...
    @overload
    def __getitem__(self, index: slice) -> "Video": ...
    def __getitem__(self, index: int | slice) -> "Image.Image | Video":
        """A frame with pixels of its own, or a part of the video at the same rate."""
        if isinstance(index, slice):
            return Video(self.pixels[index], self.rate)
        return Image.fromarray(self.pixels[index])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Video)
            and self.rate == other.rate
            and np.array_equal(self.pixels, other.pixels)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        width, height = self.size
        return f"<Video of {len(self)} frames, {width} x {height}, {self.rate:g} a second>"

    def save(self, path: Path | str, **options: Any) -> None:
        """Write a file that moves, in the format of the path's suffix.

        `.apng` and `.png` keep every pixel; `.avif` is small; `.webp` and `.gif` join equal frames
        that follow each other; `.mp4` is H.264 by PyAV, the extra `video`. options: of Pillow's
        `Image.save`, as `quality=80`; of `.mp4` H.264's, as `crf=23`. Raises ValueError for another
        suffix, UserError without PyAV.
        """
        animation.write(self, Path(path), Path(path).suffix.lower(), **options)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """The video of a file that `save` wrote, or of another animation: `.apng`, `.png`, `.avif`,
        `.webp` or `.gif`. Raises OSError where it cannot be read."""
        pixels, rate = animation.read(Path(path))
        return cls(pixels, USUAL_RATE if rate is None else rate)

    def encoded(self, suffix: str, side: int = SMALL) -> bytes:
        """The content of the file that `save` would write, of no more than so many pixels a side.
        Raises what it does."""
        content = BytesIO()
        animation.write(self.reduced(side), content, suffix)
        return content.getvalue()

    def reduced(self, side: int) -> "Video":
        """The video with no more than so many pixels a side, in its proportions."""
        if max(self.size) <= side:
            return self
        frames = [*self]
        for frame in frames:
            frame.thumbnail((side, side))
        return Video.of(frames, self.rate)

    def _repr_html_(self) -> str:
        kind = "apng" if max(self.size) <= SMALL else "webp"
        data = b64encode(self.encoded(f".{kind}")).decode()
        return f'<img alt="{len(self)} frames" src="data:image/{kind};base64,{data}">'
