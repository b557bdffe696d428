"""Images before and after training, in a grid with several prompts per row, as HTML.

Only PNG files inside the run's folder are read. Small images are enlarged by whole factors, so that
their pixels stay sharp.
"""

import base64
from collections.abc import Sequence
from pathlib import Path

from groupwise_report.completions import (
    Pair,
    Sample,
    heading,
    scores,
    shown,
    verdict,
    written,
)
from groupwise_report.conversation import words
from groupwise_report.wording import brief

MOST_PICTURED = 60  # prompts
MOST_IMAGES = 48
MOST_OF_A_PROMPT = 1_000  # characters
LARGEST = 50_000_000  # bytes of an image
SMALL = 1_000_000  # bytes of all images; below it there may be more than MOST_IMAGES
_TINY = 128  # pixels; images up to this width are enlarged
_WIDTH = 160  # pixels on the page that an enlarged image has at most
EN_DASH = "\N{EN DASH}"
_PNG = b"\x89PNG\r\n\x1a\n"


def gallery(
    pairs: Sequence[Pair], images: "Images", names: tuple[str, str], writers: Sequence[str] = ()
) -> str:
    """A card for each pair, up to the largest number of prompts or images of a page.

    names: of the two sides; writers: labels of a chain's policies before the last; their texts are
    shown, too.
    """
    cards: list[str] = []
    for pair in pairs:
        if images.full or len(cards) == MOST_PICTURED:
            left = f"{len(pairs) - len(cards):,} more are in the run's folder, under samples/."
            return f'<div class="gallery">{"".join(cards)}</div><p class="intro">{left}</p>'
        cards.append(_card(pair, images, names, writers))
    return f'<div class="gallery">{"".join(cards)}</div>' if cards else ""


def _card(pair: Pair, images: "Images", names: tuple[str, str], writers: Sequence[str]) -> str:
    sample = pair[0] or pair[1] or {}
    marks = f"<span>{brief(sample['learner'])}</span>" if sample.get("learner") else ""
    marks += "<span>greedy</span>" if sample.get("greedy") else ""
    named = zip(names, pair, strict=True)
    sides = "".join(_side(side, sample, images, writers) for side, sample in named if sample)
    return (
        f'<article class="sample picture"><header><span>Prompt {brief(sample.get("draw", ""))}'
        f"</span>{marks}{verdict(pair)}</header>{_asked(sample.get('prompt', ''))}"
        f'<div class="pair">{sides}</div></article>'
    )


def _asked(prompt: object) -> str:
    if not isinstance(prompt, str):
        return words(prompt)
    short = brief(prompt, MOST_OF_A_PROMPT)
    return f'<p class="asked" dir="auto" title="{short}">{short}</p>'


def _side(side: str, sample: Sample, images: "Images", writers: Sequence[str]) -> str:
    image = images.embed(sample["image"]) if sample.get("image") else ""
    output = words(sample["completion"]) if sample.get("completion") else ""
    above = heading(side, sample) + written(sample, writers)
    return f"<section>{above}{image}{output}{shown(sample)}{scores(sample, EN_DASH)}</section>"


class Images:
    """Embeds a run's images, and counts them against the limit of a page."""

    def __init__(self, run: Path) -> None:
        self.run = run.resolve()
        self.count = self.bytes = 0

    @property
    def full(self) -> bool:
        return self.count >= MOST_IMAGES and self.bytes >= SMALL

    def embed(self, file: object) -> str:
        """An `<img>` with the content of a file, or a line that says why there is none."""
        content = self._read(str(file))
        if content is None:
            return f"<p>{brief(file)} (no such file in the run's folder)</p>"
        if not content.startswith(_PNG):
            return f"<p>{brief(file)} (not a PNG)</p>"
        self.count += 1
        self.bytes += len(content)
        data = base64.b64encode(content).decode()
        return f'<img{_enlarged(content)} alt="{brief(file)}" src="data:image/png;base64,{data}">'

    def _read(self, file: str) -> bytes | None:
        try:
            path = (self.run / file).resolve()
            # is_file is False for a pipe, of which a read would wait for ever.
            inside = path.is_relative_to(self.run) and path.is_file()
            return path.read_bytes() if inside and path.stat().st_size <= LARGEST else None
        except (OSError, ValueError):  # an invalid file name
            return None


def _enlarged(content: bytes) -> str:
    """The attributes of a small image's tag."""
    width = int.from_bytes(content[16:20], "big")  # in the PNG's header
    if not 0 < width <= _TINY:
        return ""
    return f' class="tiny" style="width:{max(1, _WIDTH // width) * width}px"'
