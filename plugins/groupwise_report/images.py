"""The images of a run as HTML, embedded in the page: completions, and what prompts and tools show.

Only files inside the run's folder are read. Small images are enlarged by whole factors, so that
their pixels stay sharp.
"""

import base64
from io import BytesIO
from pathlib import Path

from groupwise_report.wording import brief

MOST_IMAGES = 48
MOST_BYTES = 9_000_000  # of a page's images
LARGEST = 50_000_000  # bytes of an image
SMALL = 1_000_000  # bytes of all images; below it there may be more than MOST_IMAGES
MOST_ATTACHED = 200  # images of prompts and tools
LIGHT = 40_000  # bytes of one of a prompt or a tool that is embedded as it is
HEAVY = 250_000  # bytes of a completion that is reduced
EDGE = 320  # pixels, of one that is reduced
LARGE_EDGE = 512  # pixels, of a completion that is reduced
MOST_PIXELS = 60_000_000  # of one that is reduced
_TINY = 128  # pixels; images up to this width are enlarged
_WIDTH = 160  # pixels on the page that an enlarged image has at most
_PNG = b"\x89PNG\r\n\x1a\n"
_KINDS = {_PNG: "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


class Images:
    """Embeds a run's images, and counts them against the limits of a page.

    most: bytes of all of them, `MOST_BYTES` if unset.
    """

    def __init__(self, run: Path, most: int | None = None) -> None:
        self.run, self.most = run.resolve(), MOST_BYTES if most is None else most
        self.count = self.bytes = self.attached = 0

    @property
    def full(self) -> bool:
        return self.bytes >= self.most or (self.count >= MOST_IMAGES and self.bytes >= SMALL)

    def embed(self, file: object) -> str:
        """An `<img>` with the content of a file, or a line that says why there is none."""
        content = self._read(str(file))
        if content is None:
            return f"<p>{brief(file)} (no such file in the run's folder)</p>"
        if not content.startswith(_PNG):
            return f"<p>{brief(file)} (not a PNG)</p>"
        kind = "png"
        if len(content) > HEAVY:
            smaller, data = _reduced(content, LARGE_EDGE)
            kind, content = (smaller, data) if smaller else (kind, content)
        self.count += 1
        self.bytes += len(content)
        return _img(file, kind, content)

    def small(self, file: object) -> str:
        """What is attached to a prompt or a message: an `<img>`, reduced if it is large, or its
        name."""
        has_room = self.attached < MOST_ATTACHED and self.bytes < self.most
        content = self._read(str(file)) if has_room else None
        kind, data = (None, b"") if content is None else _reduced(content)
        if kind is None:
            return f'<span class="cut">[{brief(file)}]</span>'
        self.attached += 1
        self.bytes += len(data)
        return _img(file, kind, data)

    def _read(self, file: str) -> bytes | None:
        try:
            path = (self.run / file).resolve()
            # is_file is False for a pipe, of which a read would wait for ever.
            inside = path.is_relative_to(self.run) and path.is_file()
            return path.read_bytes() if inside and path.stat().st_size <= LARGEST else None
        except (OSError, ValueError):  # an invalid file name
            return None


def thumbnails(images: list[str]) -> str:
    """Small images side by side; "" without any."""
    return f'<div class="thumbs">{"".join(images)}</div>' if images else ""


def _reduced(content: bytes, edge: int = EDGE) -> tuple[str | None, bytes]:
    """The kind and the content of an image of at most so many pixels a side; None for what is
    none."""
    kind = next((kind for start, kind in _KINDS.items() if content.startswith(start)), None)
    if kind is not None and len(content) <= LIGHT:
        return kind, content
    try:
        from PIL import Image

        with Image.open(BytesIO(content), formats=("PNG", "JPEG", "WEBP", "GIF", "BMP")) as image:
            if image.width * image.height > MOST_PIXELS:
                return None, b""
            image.thumbnail((edge, edge))
            data = BytesIO()
            image.convert("RGB").save(data, "JPEG", quality=85)
    except Exception:  # no PIL, or a damaged file, for which it raises a dozen kinds
        return None, b""
    return "jpeg", data.getvalue()


def _img(file: object, kind: str, content: bytes) -> str:
    data = base64.b64encode(content).decode()
    alt = brief(file)
    return f'<img{_enlarged(content)} alt="{alt}" src="data:image/{kind};base64,{data}">'


def _enlarged(content: bytes) -> str:
    """The attributes of a small PNG's tag."""
    if not content.startswith(_PNG):
        return ""
    width = int.from_bytes(content[16:20], "big")  # in its header
    if not 0 < width <= _TINY:
        return ""
    return f' class="tiny" style="width:{max(1, _WIDTH // width) * width}px"'
