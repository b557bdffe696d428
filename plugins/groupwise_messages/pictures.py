"""Pictures: how the core copies, compares and stores those of Pillow."""

from pathlib import Path
from typing import Any

from groupwise.kit.copies import copied

COLUMNS = ("image", "images")
"""Columns of a row that belong to its prompt, by TRL's names: one picture, or a list of them."""
PARTS = ("image", "image_url")
"""Types of parts of messages that are pictures; the second one is OpenAI's."""
PALETTES = ("P", "PA")
"""Modes of pictures whose palette is written in place."""
SMALL = 256
"""Pixels of the longer side up to which a picture or a video is always stored without loss."""


class Pictures:
    """The `groupwise.kit.media.Medium` of `PIL.Image.Image`."""

    columns = COLUMNS
    suffixes = (".png", ".jpg")

    def shared(self, value: Any) -> Any:
        """A copy with the same pixels: `thumbnail`, `paste`, `putpixel` and `ImageDraw` copy them
        before they change them, and the pixels of `load()` are read-only."""
        if not _is_readable(value):
            return value
        if value.mode in PALETTES or getattr(value, "n_frames", 1) > 1:
            return value.copy()  # these change their pixels, or a palette beside them, in place
        own = object.__new__(type(value))  # also of a file: its name and format are kept
        own.__dict__ = {**value.__dict__, "info": copied(value.info)}
        own.readonly = 1
        return own

    def own(self, value: Any) -> Any:
        return value.copy() if _is_readable(value) else value

    def equal(self, one: Any, other: Any) -> bool:
        return one.im is other.im is not None or bool(one == other)

    def content(self, value: Any) -> tuple[str, bytes]:
        return f"{value.mode} {value.size} {value.getpalette()}", value.tobytes()

    def write(self, value: Any, path: Path, *, small: bool) -> Path:
        """A PNG; of a large picture that is to be small a JPEG."""
        if small and max(value.size) > SMALL:
            whole = path.with_name(f"{path.name}.jpg")
            value.convert("RGB").save(whole, quality=90)
        else:
            whole = path.with_name(f"{path.name}.png")
            value.save(whole)
        return whole

    def read(self, path: Path) -> Any:
        from PIL import Image

        with Image.open(path) as picture:
            picture.load()
            return picture


PICTURES = Pictures()


def _is_readable(picture: Any) -> bool:
    """Whether its pixels are in memory, read from its file if need be; users' code gets the picture
    of a damaged file itself, which says what is wrong with it."""
    try:
        picture.load()
    except (OSError, SyntaxError, ValueError):
        return False
    return True
