"""Draw a run's pictures before and after training, of the same prompts and the same noise.

Right pictures have a green frame, wrong ones a red frame. Films are drawn as their frames side by
side, and the sources of edits above their results.

python docs/pictures/before_after.py runs/shapes docs/pictures/shapes.png
"""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageSequence

PICTURES, FILMS = (6, 128), (5, 160)
"""How many columns, and their width in pixels."""
GAP, LINE = 14, 18
INK, EDGE, RIGHT, WRONG = "#57606a", "#d0d7de", "#1a7f37", "#cf222e"


Framed = tuple[Image.Image, str]
"""A picture and the colour of its frame."""


def main() -> None:
    run, output = Path(sys.argv[1]), Path(sys.argv[2])
    before, after = (first_samples(run, name) for name in ("before", "after"))
    prompts = sorted(before.keys() & after.keys())
    rows = [{prompt: result(run, own[prompt]) for prompt in prompts} for own in (before, after)]
    if "images" in before[prompts[0]]:
        rows.insert(0, {prompt: source(run, before[prompt]) for prompt in prompts})
    draw(rows, prompts).save(output, optimize=True)


def draw(rows: list[dict[str, Framed]], prompts: list[str]) -> Image.Image:
    """A column for each of some prompts: its text, and below it its picture of each row."""
    first, _ = rows[0][prompts[0]]
    columns, width = PICTURES if first.width < 3 * first.height else FILMS
    tall = round(width * first.height / first.width)
    size = (columns * (width + GAP) + GAP, len(rows) * (tall + GAP) + 2 * LINE + GAP)
    sheet = Image.new("RGB", size, "white")
    canvas, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for column, prompt in enumerate(spread(prompts, columns)):
        left = GAP + column * (width + GAP)
        for number, line in enumerate(textwrap.wrap(prompt, 20 * width // PICTURES[1])[:2]):
            canvas.text((left, 4 + number * 15), line, fill=INK, font=font)
        for row, pictures in enumerate(rows):
            top = 2 * LINE + GAP // 2 + row * (tall + GAP)
            picture, color = pictures[prompt]
            sheet.paste(picture.resize((width, tall), Image.Resampling.NEAREST), (left, top))
            frame = (left - 2, top - 2, left + width + 1, top + tall + 1)
            canvas.rectangle(frame, outline=color, width=2)
    return sheet


def first_samples(run: Path, name: str) -> dict[str, dict[str, Any]]:
    """The first sample with a picture of each prompt."""
    samples: dict[str, dict[str, Any]] = {}
    for line in (run / "samples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if sample.get("image"):
            samples.setdefault(sample["prompt"], sample)
    return samples


def result(run: Path, sample: dict[str, Any]) -> Framed:
    return side_by_side(Image.open(run / sample["image"])), RIGHT if sample["right"] else WRONG


def source(run: Path, sample: dict[str, Any]) -> Framed:
    return Image.open(run / sample["images"][0]).convert("RGB"), EDGE


def side_by_side(picture: Image.Image) -> Image.Image:
    """The frames of a film, from left to right; a picture is one frame."""
    frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(picture)]
    sheet = Image.new("RGB", (len(frames) * picture.width, picture.height))
    for number, frame in enumerate(frames):
        left = number * picture.width
        sheet.paste(frame, (left, 0))
        if number:
            ImageDraw.Draw(sheet).line((left, 0, left, picture.height), fill=EDGE)
    return sheet


def spread(prompts: list[str], count: int) -> list[str]:
    return prompts[:: max(1, len(prompts) // count)][:count]


if __name__ == "__main__":
    main()
