"""Short strings, with prompts for them and pictures of them."""

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from PIL import Image, ImageDraw, ImageFont

HEIGHT, WIDTH = 24, 48
ALPHABET = "ACEFGKLMNPRU3479"
"""Letters that OCR reads reliably at this size."""
LONGEST = 3
_FINE = 4  # pictures are drawn so many times larger, and averaged down
_FONT = ImageFont.load_default(17 * _FINE)

Row = dict[str, Any]


def rows() -> Iterator[Row]:
    """Every string of at most three letters."""
    for length in range(1, LONGEST + 1):
        for letters in product(ALPHABET, repeat=length):
            yield {"prompt": prompt("".join(letters)), "text": "".join(letters)}


def prompt(text: str) -> str:
    """The prompt, with spaces so that each letter is a token."""
    return f"the letters {' '.join(text)}"


def draw(text: str, chance: random.Random) -> Image.Image:
    """A picture of dark letters on white, each slightly displaced at random."""
    picture = Image.new("L", (WIDTH * _FINE, HEIGHT * _FINE), 255)
    canvas = ImageDraw.Draw(picture)
    step = 14 * _FINE
    left = (WIDTH * _FINE - step * len(text)) / 2
    for number, letter in enumerate(text):
        x = left + step * (number + 0.5) + _FINE * chance.uniform(-0.7, 0.7)
        y = HEIGHT * _FINE / 2 + _FINE * chance.uniform(-1.2, 1.2)
        canvas.text((x, y), letter, fill=0, font=_FONT, anchor="mm")
    return picture.resize((WIDTH, HEIGHT), Image.Resampling.BOX).convert("RGB")
