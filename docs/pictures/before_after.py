"""Draw a run's pictures before and after training, of the same prompts and the same noise.

Right pictures have a green frame, wrong ones a red frame. Films are drawn as their frames side by
side.

python docs/pictures/before_after.py runs/shapes docs/pictures/shapes.png
"""

import json
import sys
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageSequence

PICTURES, FILMS = (6, 128), (5, 160)
"""How many columns, and their width in pixels."""
GAP, LINE = 14, 18
INK, EDGE, RIGHT, WRONG = "#57606a", "#d0d7de", "#1a7f37", "#cf222e"


def main() -> None:
    run, output = Path(sys.argv[1]), Path(sys.argv[2])
    before, after = (first_pictures(run, name) for name in ("before", "after"))
    prompts = sorted(before.keys() & after.keys())
    first, _ = before[prompts[0]]
    columns, width = PICTURES if first.width < 3 * first.height else FILMS
    tall = round(width * first.height / first.width)
    size = (columns * (width + GAP) + GAP, 2 * (tall + GAP) + 2 * LINE + GAP)
    sheet = Image.new("RGB", size, "white")
    canvas, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for column, prompt in enumerate(spread(prompts, columns)):
        left = GAP + column * (width + GAP)
        for number, line in enumerate(textwrap.wrap(prompt, 20 * width // PICTURES[1])[:2]):
            canvas.text((left, 4 + number * 15), line, fill=INK, font=font)
        for row, pictures in enumerate((before, after)):
            top = 2 * LINE + GAP // 2 + row * (tall + GAP)
            picture, right = pictures[prompt]
            sheet.paste(picture.resize((width, tall), Image.Resampling.NEAREST), (left, top))
            frame = (left - 2, top - 2, left + width + 1, top + tall + 1)
            canvas.rectangle(frame, outline=RIGHT if right else WRONG, width=2)
    sheet.save(output, optimize=True)


def first_pictures(run: Path, name: str) -> dict[str, tuple[Image.Image, bool]]:
    """The first picture of each prompt, and whether it is right."""
    pictures: dict[str, tuple[Image.Image, bool]] = {}
    for line in (run / "samples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if sample["prompt"] not in pictures and sample.get("image"):
            picture = side_by_side(Image.open(run / sample["image"]))
            pictures[sample["prompt"]] = picture, bool(sample["right"])
    return pictures


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
