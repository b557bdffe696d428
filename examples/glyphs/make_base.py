"""Make the base model of `examples/glyphs.yaml`: a small SD3 that writes letters, often wrong ones.

    python examples/glyphs/make_base.py --minutes 36

The model is trained on pictures whose captions name nearly as many wrong letters as right ones. So
it can write every letter at every place, but follows the prompt only roughly; GRPO has to teach it
to follow. The strings that `groupwise` holds out for evaluation are in no picture and no caption.
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
"""The share of a caption's letters that are replaced by random ones."""


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
    training = [row["text"] for row in everything if not held_out(row["prompt"], HELD_OUT)]
    by_length = {size: [text for text in training if len(text) == size] for size in (1, 2, 3)}
    lengths = chance.choices((1, 2, 3), weights=(1, 2, 5), k=options.pictures)
    texts = [chance.choice(by_length[length]) for length in lengths]
    pictures = torch.stack([small_sd3.to_tensor(strings.draw(text, chance)) for text in texts])
    started = time.monotonic()
    words = ["the letters", *strings.ALPHABET.lower()]
    pipe = small_sd3.pipeline(words, length=8, side=12)
    error = small_sd3.train_autoencoder(pipe.vae, pictures, minutes=0.25 * options.minutes)
    print(f"autoencoder: pixel error {error:.4f}", flush=True)
    latents = small_sd3.encode(pipe.vae, pictures)

    def caption(number: int) -> str:
        while held_out(text := strings.prompt(mistaken(texts[number], chance)), HELD_OUT):
            pass
        return text

    left = options.minutes - (time.monotonic() - started) / 60
    updates = small_sd3.train_flow(pipe, latents, caption, minutes=left)
    print(f"transformer: {updates} updates, {time.monotonic() - started:.0f} s", flush=True)
    small_sd3.save(pipe, options.output)


def mistaken(text: str, chance: random.Random) -> str:
    """The text, each letter replaced by a random one with probability `WRONG`."""
    letters = strings.ALPHABET
    return "".join(chance.choice(letters) if chance.random() < WRONG else own for own in text)


if __name__ == "__main__":
    main()
