"""Pictures of prompts and completions: from what columns hold to PIL images, and to data: URLs."""

from __future__ import annotations

import io
from base64 import b64encode
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from groupwise_messages.frames import evenly

if TYPE_CHECKING:
    from PIL.Image import Image

REMEMBERED = 64
"""Pictures whose addresses are kept in memory."""


@dataclass(frozen=True)
class Frames:
    """What a judge sees of a video: some of its frames, in their order."""

    pictures: tuple[Image, ...]
    seconds: float
    """From the first of them to the last."""

    def __str__(self) -> str:
        count = len(self.pictures)
        return (
            f"a video, {count} frames from {self.seconds:.2g} seconds" if count > 1 else "a frame"
        )


def seen(completion: Any, frames: int) -> Any:
    """The completion; of a video its `Frames`, at most so many."""
    try:
        from groupwise_messages.video import Video
    except ImportError:  # without Pillow nothing is a video
        return completion
    if not isinstance(completion, Video):
        return completion
    numbers = evenly(len(completion), frames)
    pictures = tuple(completion[number] for number in numbers)
    return Frames(pictures, (numbers[-1] - numbers[0]) / completion.rate)


def is_picture(value: Any) -> bool:
    """Whether a value is a PIL image; without Pillow nothing is."""
    try:
        from PIL import Image
    except ImportError:
        return False
    return isinstance(value, Image.Image)


def opened(value: Any) -> Image:
    """An RGB image of what `groupwise_messages.images.opened` opens, and nothing beside its pixels;
    the picture itself if it is such, so that a ranking does not copy it for every comparison.

    Raises ValueError for anything else, and for a file that is not an image.
    """
    from PIL import Image as Images

    from groupwise_messages import images

    if type(value) is Images.Image and value.mode == "RGB" and not value.info:
        return value
    image = images.opened(value)
    plain = Images.new("RGB", image.size)
    plain.paste(image)
    return plain


def pixels(image: Image) -> bytes:
    """What tells two pictures apart."""
    return f"{image.mode} {image.size}".encode() + image.tobytes()


_URLS: OrderedDict[int, tuple[Image, str]] = OrderedDict()
"""The latest addresses by the picture's id; the picture is kept, so that its id stays its own."""


def data_url(image: Image) -> str:
    """The picture as a PNG inside an address, as chat completions take it.

    The latest ones are remembered: a ranking sends the same picture in many requests.
    """
    if id(image) not in _URLS:
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        _URLS[id(image)] = image, f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
        if len(_URLS) > REMEMBERED:
            _URLS.popitem(last=False)
    return _URLS[id(image)][1]
