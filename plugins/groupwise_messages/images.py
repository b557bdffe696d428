"""Images: pictures as users give them, opened as PIL's images in RGB."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from groupwise import attachments
from groupwise.kit.errors import first_line

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that PIL reads by itself; for some others it starts programs."""
MOST_BYTES = 50_000_000
"""Of a picture that is fetched."""
PATIENCE = 20.0
"""Seconds for a picture that is fetched."""
FIRST_TURNED = 5
"""EXIF's orientations from this one on exchange width and height."""
ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
UNSCALED = {"I": "integers of 32 bits", "F": "floats"}
"""Modes whose pixels have no white that is known."""


class ImageError(ValueError):
    """Why there is no picture, as a clause that follows the place where it stands."""


class AddressError(ImageError):
    """The picture would have to be fetched."""


def opened(value: Any, *, fetch: bool = False) -> Image.Image:
    """A picture in RGB: as its EXIF data turn it, transparent parts white, of an animation the
    first frame.

    value: a PIL image, the path of a file, bytes, `{"bytes", "path"}`, a `data:` URL, uint8 pixels
        [height, width, 3], or if `fetch` an http(s) URL. Grey pixels of 16 bits are scaled to 8.
        Raises ImageError.
    """
    with _naming(value):
        return _in_rgb(_image(value, fetch=fetch))


def side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures in a row, in RGB, all as high as the last."""
    height = pictures[-1].height
    scaled = [one.resize((max(1, one.width * height // one.height), height)) for one in pictures]
    whole = Image.new("RGB", (sum(one.width for one in scaled), height))
    left = 0
    for one in scaled:
        whole.paste(one, (left, 0))
        left += one.width
    return whole


def measured(value: Any, *, fetch: bool = False) -> tuple[int, int]:
    """Width and height of what `opened` returns. Pixels are not read, which takes most of the time:
    a damaged file is not noticed. Raises ImageError."""
    with _naming(value):
        image = _checked(_image(value, fetch=fetch))
        # Of a PNG without EXIF data PIL would read the pixels to look for them; the size of a TIFF
        # is as it is turned.
        exif = image.getexif() if "exif" in image.info else {}
        turned = exif.get(ExifTags.Base.Orientation, 1) >= FIRST_TURNED
        return (image.height, image.width) if turned else image.size


@contextmanager
def _naming(value: Any) -> Iterator[None]:
    """The context whose errors become ImageErrors that name the picture."""
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large() from error
    except UnidentifiedImageError as error:
        formats = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise ImageError(f"{attachments.named(value)} is not a picture ({formats})") from error
    except ImageError:
        raise
    except Exception as error:  # of a damaged file PIL raises a dozen kinds
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise ImageError(f"{attachments.named(value)} cannot be opened: {problem}") from error


def _image(value: Any, *, fetch: bool) -> Image.Image:
    """The picture, whose pixels may not be read yet."""
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, np.ndarray):
        return Image.fromarray(value)
    if isinstance(value, Mapping) and isinstance(value.get("url"), str):
        value = value["url"]
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return _decoded(_fetched(value, allowed=fetch))
    data = attachments.content(value)
    if isinstance(data, bytes):
        return _decoded(data)
    if isinstance(value, str | Path):
        raise ImageError(f"there is no file {str(value)[:200]!r}")
    raise ImageError(
        f"expected a PIL image, the path of a file, bytes or a data: URL, found "
        f"{type(value).__name__}"
    )


def _decoded(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data), formats=FORMATS)


def _checked(image: Image.Image) -> Image.Image:
    """Raises ImageError for one of more pixels than PIL's limit, or of ones without a scale."""
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and image.width * image.height > most:
        raise _too_large()
    if not (image.width and image.height):
        raise ImageError("the picture has no pixels")
    if image.mode in UNSCALED:
        raise ImageError(
            f"the picture's pixels are {UNSCALED[image.mode]}, of which nobody knows how bright "
            f"white is; scale them to 0 to 255, as uint8"
        )
    return image


def _in_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(_checked(image))
    if image.mode in SIXTEEN_BITS:  # PIL's own conversion clips at 255
        wide = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.mode in ALPHA or "transparency" in image.info:
        own = image.convert("RGBA")
        white = Image.new("RGBA", own.size, "white")
        return Image.alpha_composite(white, own).convert("RGB")
    return image.convert("RGB")


def _too_large() -> ImageError:
    return ImageError(
        f"the picture has more than {Image.MAX_IMAGE_PIXELS:,} pixels, PIL's limit against files "
        f"that fill the memory (PIL.Image.MAX_IMAGE_PIXELS)"
    )


def _fetched(url: str, *, allowed: bool) -> bytes:
    if not allowed:
        raise AddressError(
            f"{url[:200]!r} is a web address, which is not fetched: download the picture, and put "
            f"the path of its file there"
        )
    with urlopen(url, timeout=PATIENCE) as answer:
        data: bytes = answer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ImageError(f"{url[:200]!r} has more than {MOST_BYTES:,} bytes")
    return data
