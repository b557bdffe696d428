"""Draw a run's pictures before and after training, of the same prompts and the same noise.

Right pictures have a green frame, wrong ones a red frame.

python docs/pictures/before_after.py runs/shapes docs/pictures/shapes.png
"""

import json
import sys
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

COLUMNS, WIDTH, GAP, LINE = 6, 128, 14, 18
INK, RIGHT, WRONG = "#57606a", "#1a7f37", "#cf222e"


def main() -> None:
    run, output = Path(sys.argv[1]), Path(sys.argv[2])
    before, after = (first_pictures(run, name) for name in ("before", "after"))
    prompts = spread(sorted(before.keys() & after.keys()))
    first, _ = before[prompts[0]]
    tall = round(WIDTH * first.height / first.width)
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
            picture, right = pictures[prompt]
            sheet.paste(picture.resize((WIDTH, tall), Image.Resampling.NEAREST), (left, top))
            frame = (left - 2, top - 2, left + WIDTH + 1, top + tall + 1)
            canvas.rectangle(frame, outline=RIGHT if right else WRONG, width=2)
    sheet.save(output, optimize=True)


def first_pictures(run: Path, name: str) -> dict[str, tuple[Image.Image, bool]]:
    """The first picture of each prompt, and whether it is right."""
    pictures: dict[str, tuple[Image.Image, bool]] = {}
    for line in (run / "samples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if sample["prompt"] not in pictures and sample.get("image"):
            picture = Image.open(run / sample["image"]).convert("RGB")
            pictures[sample["prompt"]] = picture, bool(sample["right"])
    return pictures


def spread(prompts: list[str]) -> list[str]:
    return prompts[:: max(1, len(prompts) // COLUMNS)][:COLUMNS]


if __name__ == "__main__":
    main()
