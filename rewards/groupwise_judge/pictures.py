"""Pictures of prompts and completions: from what columns hold to PIL images, and to data: URLs."""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

REMEMBERED = 64
"""Pictures whose addresses are kept in memory."""


def is_picture(value: Any) -> bool:
    """Whether a value is a PIL image; without Pillow nothing is."""
    try:
        from PIL import Image
    except ImportError:
        return False
    return isinstance(value, Image.Image)


def opened(value: Any) -> Image:
    """An RGB image of a PIL image, bytes, a path, a data: URL, or a mapping with `bytes` or `path`,
    as `datasets` writes them; transparent parts become white.

    Raises ValueError for anything else, and for a file that is not an image.
    """
    from PIL import Image

    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, Image.Image):
        return _plain(value)
    if isinstance(value, str) and value.startswith(("http:", "https:")):
        raise ValueError(
            f"the picture {value:.80} is an address, which a judge does not fetch: store the file "
            f"and put its path into the data"
        )
    if not isinstance(value, bytes | str | Path):
        raise ValueError(f"expected a picture, found {type(value).__name__}: {value!r:.60}")
    try:
        if isinstance(value, str) and value.startswith("data:"):
            value = b64decode(value.partition(",")[2])
        with Image.open(io.BytesIO(value) if isinstance(value, bytes) else value) as image:
            return _plain(image)
    except FileNotFoundError as error:
        raise ValueError(f"there is no picture {value!r:.120}") from error
    # A SyntaxError is PIL's for broken chunks of a PNG.
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"the picture {value!r:.60} cannot be opened: {error}") from error


def _plain(image: Image) -> Image:
    """RGB pixels and nothing else: no metadata, and on white, as a page shows it; the picture
    itself if it is such, so that a ranking does not copy it for every comparison."""
    from PIL import Image as Images

    if type(image) is Images.Image and image.mode == "RGB" and not image.info:
        return image
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
