"""Pictures of prompts and completions: from what columns hold to PIL images, and to data: URLs."""

from __future__ import annotations

import io
from base64 import b64encode
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from groupwise import attachments

if TYPE_CHECKING:
    from PIL.Image import Image

REMEMBERED = 64
"""Pictures whose addresses are kept in memory."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that PIL reads by itself; for some others, such as EPS, it starts programs. The same as
those of policies that see."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
UNSCALED = {"I": "integers of 32 bits", "F": "floats"}
"""Modes whose pixels have no white that is known."""


class UnusableError(ValueError):
    """Why there is no picture to open."""


def is_picture(value: Any) -> bool:
    """Whether a value is a PIL image; without Pillow nothing is."""
    try:
        from PIL import Image
    except ImportError:
        return False
    return isinstance(value, Image.Image)


def opened(value: Any) -> Image:
    """An RGB image of a PIL image, bytes, a path, a data: URL, uint8 pixels [height, width, 3], or
    a mapping with `bytes`, `path` or `url`: as its EXIF data turn it, transparent parts white.

    Raises ValueError for anything else, and for a file that is not an image.
    """
    from PIL import Image

    try:
        return _plain(_image(value))
    except UnusableError:
        raise
    # Of a damaged file PIL raises a dozen kinds, a SyntaxError for broken chunks of a PNG.
    except (Image.DecompressionBombError, OSError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(
            f"the picture {attachments.named(value)} cannot be opened: {error}"
        ) from error


def _image(value: Any) -> Image:
    """The picture, whose pixels may not be read yet."""
    from PIL import Image as Images

    if isinstance(value, np.ndarray):
        return Images.fromarray(value)
    content = attachments.content(value)
    if isinstance(content, bytes):
        return Images.open(io.BytesIO(content), formats=FORMATS)
    if isinstance(content, Images.Image):
        return content
    if attachments.is_url(content):
        raise UnusableError(
            f"the picture {content:.80} is an address, which a judge does not fetch: store the "
            f"file and put its path into the data"
        )
    if isinstance(content, str | Path):
        raise UnusableError(f"there is no picture {str(content)!r:.120}")
    raise UnusableError(f"expected a picture, found {type(value).__name__}: {value!r:.60}")


def _plain(image: Image) -> Image:
    """RGB pixels and nothing else: turned as its metadata say, without them, and on white, as a
    page shows it; the picture itself if it is such, so that a ranking does not copy it for every
    comparison."""
    from PIL import Image as Images
    from PIL import ImageOps

    if type(image) is Images.Image and image.mode == "RGB" and not image.info:
        return image
    if image.mode in UNSCALED:
        raise UnusableError(
            f"a picture's pixels are {UNSCALED[image.mode]}, of which nobody knows how bright "
            f"white is; scale them to 0 to 255, as uint8"
        )
    image = ImageOps.exif_transpose(image)
    if image.mode in SIXTEEN_BITS:  # PIL's own conversion clips at 255
        wide = np.asarray(image).astype(np.uint32)
        image = Images.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Images.alpha_composite(Images.new("RGBA", image.size, "white"), image)
    plain = Images.new("RGB", image.size)
    plain.paste(image.convert("RGB"))
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
