"""The images and videos of a run as HTML, embedded in the page: completions, and what prompts and
tools show.

Only files inside the run's folder are read. Small images are enlarged by whole factors, so that
their pixels stay sharp. A video moves if its file is not too large, else its first frame is shown.
"""

from pathlib import Path

from groupwise_report.image_file import data_url, kind_of, moves, reduced, width_of
from groupwise_report.wording import brief

MOST_IMAGES = 48
MOST_BYTES = 9_000_000  # of a page's images
LARGEST = 50_000_000  # bytes of a file that is read
SMALL = 1_000_000  # bytes of all images; below it there may be more than MOST_IMAGES
MOST_ATTACHED = 200  # images of prompts and tools
LIGHT = 40_000  # bytes of one of a prompt or a tool that is embedded as it is
HEAVY = 250_000  # bytes of a completion that is reduced, and of a small video
LONG = 1_000_000  # bytes of a completion's video of which a page has the first frame alone
EDGE = 320  # pixels, of one that is reduced
LARGE_EDGE = 512  # pixels, of a completion that is reduced
COMPLETIONS = {"png": "PNG", "avif": "AVIF"}  # the formats of completions
_TINY = 128  # pixels; images up to this width are enlarged
_WIDTH = 160  # pixels on the page that an enlarged image has at most


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
        try:
            content = self._read(str(file))
        except ValueError as problem:
            return f"<p>{brief(file)} ({problem})</p>"
        if kind_of(content) not in COMPLETIONS:
            return f"<p>{brief(file)} (not a {' or '.join(COMPLETIONS.values())})</p>"
        self.count += 1
        most = LONG if moves(content) else HEAVY
        shown = self._shown(file, content, most=most, edge=LARGE_EDGE)
        size = f"{len(content) / 1e6:.1f} MB"
        return shown or f"<p>{brief(file)} ({size}; damaged, or Pillow is not installed)</p>"

    def small(self, file: object) -> str:
        """What is attached to a prompt or a message: an `<img>`, reduced if it is large, or its
        name."""
        named = f'<span class="cut">[{brief(file)}]</span>'
        if self.attached >= MOST_ATTACHED or self.bytes >= self.most:
            return named
        try:
            content = self._read(str(file))
        except ValueError:
            return named
        shown = self._shown(file, content, most=HEAVY if moves(content) else LIGHT, edge=EDGE)
        self.attached += bool(shown)
        return shown or named

    def _shown(self, file: object, content: bytes, *, most: int, edge: int) -> str:
        """An `<img>` with a file of at most so many bytes, else with a smaller picture of it; ""
        for what cannot be opened."""
        kind, still = kind_of(content), b""
        is_whole = kind is not None and len(content) <= most
        if not is_whole or kind == "avif":  # which not every browser shows
            still = reduced(content, edge)
        self.bytes += len(still) + (len(content) if is_whole else 0)
        alt = brief(file)
        if not is_whole or kind is None:
            size = f"{len(content) / 1e6:.1f} MB: the first frame"
            note = f'<p class="cut">{alt} ({size})</p>' if moves(content) else ""
            return f'<img alt="{alt}" src="{data_url("jpeg", still)}">{note}' if still else ""
        shown = data_url(kind, content)
        if not still:
            return f'<img{_enlarged(content)} alt="{alt}" src="{shown}">'
        return (
            f'<picture><source type="image/{kind}" srcset="{shown}">'
            f'<img alt="{alt}" src="{data_url("jpeg", still)}"></picture>'
        )

    def _read(self, file: str) -> bytes:
        """The content of a file. Raises ValueError with the reason why it is not shown."""
        try:
            path = (self.run / file).resolve()
            # is_file is False for a pipe, of which a read would wait for ever.
            if path.is_relative_to(self.run) and path.is_file():
                if (size := path.stat().st_size) <= LARGEST:
                    return path.read_bytes()
                raise ValueError(f"{size / 1e6:,.0f} MB, too large for this page")
        except OSError:
            pass
        raise ValueError("no such file in the run's folder")


def thumbnails(images: list[str]) -> str:
    """Small images side by side; "" without any."""
    return f'<div class="thumbs">{"".join(images)}</div>' if images else ""


def _enlarged(content: bytes) -> str:
    """The attributes of a small PNG's tag."""
    width = width_of(content)
    if not 0 < width <= _TINY:
        return ""
    return f' class="tiny" style="width:{max(1, _WIDTH // width) * width}px"'
