"""Draw a run's pictures before and after training, of the same prompts and the same noise.

python docs/pictures/before_after.py runs/shapes docs/pictures/shapes.png
"""

import json
import sys
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

COLUMNS, WIDTH, GAP, LINE = 6, 128, 14, 18
INK = "#57606a"


def main() -> None:
    run, output = Path(sys.argv[1]), Path(sys.argv[2])
    before, after = (first_pictures(run, name) for name in ("before", "after"))
    prompts = spread(sorted(before.keys() & after.keys()))
    tall = round(WIDTH * before[prompts[0]].height / before[prompts[0]].width)
    sheet = Image.new(
        "RGB", (COLUMNS * (WIDTH + GAP) + GAP, 2 * (tall + GAP) + 2 * LINE + GAP), "white"
    )
    canvas, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for column, prompt in enumerate(prompts):
        left = GAP + column * (WIDTH + GAP)
        for number, line in enumerate(textwrap.wrap(prompt, 20)[:2]):
            canvas.text((left, 4 + number * 15), line, fill=INK, font=font)
        for row, pictures in enumerate((before, after)):
            top = 2 * LINE + GAP // 2 + row * (tall + GAP)
            enlarged = pictures[prompt].resize((WIDTH, tall), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (left, top))
            canvas.rectangle((left - 1, top - 1, left + WIDTH, top + tall), outline="#d0d7de")
    sheet.save(output, optimize=True)


def first_pictures(run: Path, name: str) -> dict[str, Image.Image]:
    """The first picture of each prompt."""
    pictures: dict[str, Image.Image] = {}
    for line in (run / "samples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if sample["prompt"] not in pictures and sample.get("image"):
            pictures[sample["prompt"]] = Image.open(run / sample["image"]).convert("RGB")
    return pictures


def spread(prompts: list[str]) -> list[str]:
    return prompts[:: max(1, len(prompts) // COLUMNS)][:COLUMNS]


if __name__ == "__main__":
    main()
