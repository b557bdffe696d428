"""Draw questions about pictures, and what a run's model answered before and after training.

Right answers are green, wrong ones red.

python docs/pictures/answers.py runs/count_shapes_seed0 docs/pictures/count_shapes.png
"""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

COLUMNS, WIDTH, GAP, LINE = 4, 200, 16, 15
PICTURE = 96
INK, RIGHT, WRONG = "#57606a", "#1a7f37", "#cf222e"
LINES = 7
"""Of text below a picture: a question and two answers."""


def main() -> None:
    run, output = Path(sys.argv[1]), Path(sys.argv[2])
    before, after = (answers(run, name) for name in ("before", "after"))
    rows = [key for key in before if key in after]
    # One of every kind of question, those with most objects first.
    rows.sort(key=lambda key: -len(after[key]["text"]))
    rows = [*{key[0].split()[1]: key for key in reversed(rows)}.values(), *rows]
    rows = list(dict.fromkeys(rows))[:COLUMNS]
    size = (COLUMNS * (WIDTH + GAP) + GAP, PICTURE + 3 * GAP + LINES * LINE)
    sheet = Image.new("RGB", size, "white")
    canvas, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for column, key in enumerate(rows):
        left, top = GAP + column * (WIDTH + GAP), GAP
        picture = Image.open(run / key[1]).convert("RGB")
        sheet.paste(picture.resize((PICTURE, PICTURE), Image.Resampling.NEAREST), (left, top))
        canvas.rectangle((left - 1, top - 1, left + PICTURE, top + PICTURE), outline=INK)
        top += PICTURE + GAP // 2
        texts = [(key[0], INK)]
        for name, own in (("before", before[key]), ("after", after[key])):
            texts.append((f"{name}: {own['text']}", RIGHT if own["right"] else WRONG))
        for text, colour in texts:
            for line in textwrap.wrap(text, 32):
                canvas.text((left, top), line, fill=colour, font=font)
                top += LINE
    sheet.save(output, optimize=True)


def answers(run: Path, name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The sampled answer to each question, by its text and the picture's file."""
    own: dict[tuple[str, str], dict[str, Any]] = {}
    for line in (run / "samples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if not sample["greedy"]:
            key = (sample["prompt"][-1]["content"], sample["images"][0])
            own[key] = {"text": sample["completion"][-1]["content"], "right": sample["right"]}
    return own


if __name__ == "__main__":
    main()
