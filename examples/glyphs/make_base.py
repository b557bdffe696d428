"""Make the base model of `examples/glyphs.yaml`: a small SD3 that writes letters, often wrong.

    python examples/glyphs/make_base.py --minutes 36

The model learns from pictures whose captions name wrong letters as often as right ones, nearly. So
it can write every letter at every place, and takes the prompt for a hint; GRPO is left to find out
that the prompt is meant. The strings that `groupwise` holds out for evaluation are in no picture
and in no caption.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import small_sd3  # noqa: E402
import strings  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.1
WRONG = 0.45
"""The share of letters that a caption gets wrong."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=36.0)
    parser.add_argument("--pictures", type=int, default=24_000)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    torch.manual_seed(0)
    chance = random.Random(0)
    everything = list(strings.rows())
    lines = "".join(json.dumps(row) + "\n" for row in everything)
    (HERE / "prompts.jsonl").write_text(lines, encoding="utf-8")
    seen = [row["text"] for row in everything if not held_out(row["prompt"], HELD_OUT)]
    by_length = {length: [text for text in seen if len(text) == length] for length in (1, 2, 3)}
    lengths = chance.choices((1, 2, 3), weights=(1, 2, 5), k=options.pictures)
    texts = [chance.choice(by_length[length]) for length in lengths]
    pictures = torch.stack([small_sd3.to_tensor(strings.draw(text, chance)) for text in texts])
    started = time.monotonic()
    words = ["the letters", *strings.ALPHABET.lower()]
    pipe = small_sd3.pipeline(words, length=8, side=12)
    error = small_sd3.train_autoencoder(pipe.vae, pictures, minutes=0.25 * options.minutes)
    print(f"autoencoder: pixels off by {error:.4f}", flush=True)
    latents = small_sd3.encode(pipe.vae, pictures)

    def caption(number: int) -> str:
        while held_out(told := strings.prompt(mistaken(texts[number], chance)), HELD_OUT):
            pass
        return told

    left = options.minutes - (time.monotonic() - started) / 60
    updates = small_sd3.train_flow(pipe, latents, caption, minutes=left)
    print(f"transformer: {updates} updates, {time.monotonic() - started:.0f} s", flush=True)
    small_sd3.save(pipe, options.output)


def mistaken(text: str, chance: random.Random) -> str:
    """The text with each letter drawn anew with the chance `WRONG`."""
    letters = strings.ALPHABET
    return "".join(chance.choice(letters) if chance.random() < WRONG else own for own in text)


if __name__ == "__main__":
    main()
