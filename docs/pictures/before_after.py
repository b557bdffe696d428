"""Draw a run's pictures before and after training, of the same prompts and the same noise.

Right pictures have a green frame, wrong ones a red frame. Films are drawn as their frames side by
side, or move, and the sources of edits are drawn above their results.

python docs/pictures/before_after.py runs/shapes docs/pictures/shapes.png
python docs/pictures/before_after.py runs/moving docs/pictures/films.png --moving
"""

import json
import sys
import textwrap
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageSequence

PICTURES, FILMS = (6, 128), (5, 160)
"""How many columns, and their width in pixels."""
GAP, LINE = 14, 18
PACE = 300
"""Milliseconds of a frame of films that move; the last one stays three times as long."""
INK, EDGE, RIGHT, WRONG = "#57606a", "#d0d7de", "#1a7f37", "#cf222e"


Framed = tuple[list[Image.Image], str]
"""The frames of a film, or a picture alone, and the colour around it."""
Drawn = tuple[Image.Image, str]


def main() -> None:
    run, output, moving = Path(sys.argv[1]), Path(sys.argv[2]), "--moving" in sys.argv
    before, after = (first_samples(run, name) for name in ("before", "after"))
    prompts = sorted(before.keys() & after.keys())
    rows = [{prompt: result(run, own[prompt]) for prompt in prompts} for own in (before, after)]
    if "images" in before[prompts[0]]:
        rows.insert(0, {prompt: source(run, before[prompt]) for prompt in prompts})
    if not moving:
        draw(shown(rows, side_by_side), prompts).save(output, optimize=True)
        return
    count = max(len(frames) for row in rows for frames, _ in row.values())
    sheets = [draw(shown(rows, itemgetter(frame)), prompts) for frame in range(count)]
    pace = [*[PACE] * (count - 1), 3 * PACE]
    sheets[0].save(output, save_all=True, append_images=sheets[1:], duration=pace)


def shown(
    rows: list[dict[str, Framed]], chosen: Callable[[list[Image.Image]], Image.Image]
) -> list[dict[str, Drawn]]:
    """Of each film the picture that is drawn."""
    return [
        {prompt: (chosen(film), color) for prompt, (film, color) in row.items()} for row in rows
    ]


def draw(rows: list[dict[str, Drawn]], prompts: list[str]) -> Image.Image:
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
    return frames(run / sample["image"]), RIGHT if sample["right"] else WRONG


def source(run: Path, sample: dict[str, Any]) -> Framed:
    return frames(run / sample["images"][0]), EDGE


def frames(file: Path) -> list[Image.Image]:
    """Of a film; a picture is one frame."""
    return [frame.convert("RGB") for frame in ImageSequence.Iterator(Image.open(file))]


def side_by_side(film: list[Image.Image]) -> Image.Image:
    """The frames of a film, from left to right."""
    width, height = film[0].size
    sheet = Image.new("RGB", (len(film) * width, height))
    for number, frame in enumerate(film):
        sheet.paste(frame, (number * width, 0))
        if number:
            ImageDraw.Draw(sheet).line((number * width, 0, number * width, height), fill=EDGE)
    return sheet


def spread(prompts: list[str], count: int) -> list[str]:
    return prompts[:: max(1, len(prompts) // count)][:count]


if __name__ == "__main__":
    main()
