"""An image's file: its format, whether it moves, and a smaller picture of it."""

import base64
from io import BytesIO

MOST_PIXELS = 60_000_000  # of one that is reduced
_PNG = b"\x89PNG\r\n\x1a\n"
_KINDS = {_PNG: "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
_AVIF = {b"ftypavif": False, b"ftypavis": True}  # brands, and whether it is a sequence
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")


def kind_of(content: bytes) -> str | None:
    """The format of what every browser shows, and of AVIF, by its first bytes; None for others."""
    if content[4:12] in _AVIF:
        return "avif"
    return next((kind for start, kind in _KINDS.items() if content.startswith(start)), None)


def moves(content: bytes) -> bool:
    """Whether it is an animation, of a PNG or an AVIF."""
    if content.startswith(_PNG):
        return b"acTL" in content[: content.find(b"IDAT")]  # the chunk stands before the pixels
    return _AVIF.get(content[4:12], False)


def width_of(content: bytes) -> int:
    """The width in the header of a PNG; 0 for other formats."""
    return int.from_bytes(content[16:20], "big") if content.startswith(_PNG) else 0


def reduced(content: bytes, edge: int) -> bytes:
    """A JPEG of at most so many pixels a side, of an animation the first frame; b"" for what cannot
    be opened."""
    try:
        from PIL import Image

        with Image.open(BytesIO(content), formats=_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                return b""
            image.thumbnail((edge, edge))
            data = BytesIO()
            image.convert("RGB").save(data, "JPEG", quality=85)
    except Exception:  # no PIL, or a damaged file, for which it raises a dozen kinds
        return b""
    return data.getvalue()


def data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
