"""Make the base model of `examples/moving.yaml`: a small Wan that roughly follows its prompt.

    python examples/moving/make_base.py
    python examples/moving/make_base.py --minutes 9 --more     # continues training

The autoencoder is trained for six minutes on films of all colours, shapes, sizes and speeds, the
transformer on films of the prompts, with noisy captions: in a share of them one word is wrong. So
it can film every shape, colour and direction, but confuses them; GRPO has to teach it to follow
the prompt. The prompts that `groupwise` holds out for evaluation are in no caption.

The base in `moving/base` was made by both commands, but its autoencoder saw single frames for a
quarter of its time (pixel error 0.020); now it does until they are good, since another run of that
form stayed at 0.081.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import WanPipeline

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import small_wan  # noqa: E402
from moving import films  # noqa: E402
from small_sd3 import save  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.2
WRONG = 0.15
"""The share of captions with a wrong word."""
LENGTH = 8
"""Tokens of a prompt."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=14.0, help="of the transformer")
    parser.add_argument("--films", type=int, default=8_000)
    parser.add_argument("--more", action="store_true", help="continue training the transformer")
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    torch.manual_seed(0)
    chance = random.Random(0)
    everything = [*films.rows()]
    pipe = small_wan.pipeline([row["prompt"] for row in everything])
    started = time.monotonic()
    if options.more:
        pipe = WanPipeline.from_pretrained(options.output, dtype=torch.float32)
    else:
        shown = np.stack([films.draw_any(chance) for _ in range(12_000)])
        error = small_wan.train_autoencoder(pipe.vae, torch.from_numpy(shown), minutes=6)
        print(f"autoencoder: pixel error {error:.4f}", flush=True)
    training = [row for row in everything if not held_out(row["prompt"], HELD_OUT)]
    drawn = chance.choices(training, k=options.films)
    shown = torch.from_numpy(np.stack([films.draw(row, chance) for row in drawn]))
    print(f"{len(shown)} films of {len(training)} of {len(everything)} prompts", flush=True)
    latents = small_wan.encode(pipe.vae, shown)

    def caption(number: int) -> str:
        return noisy(drawn[number], chance)

    updates = small_wan.train_flow(pipe, latents, caption, length=LENGTH, minutes=options.minutes)
    print(f"transformer: {updates} updates, {time.monotonic() - started:.0f} s", flush=True)
    save(pipe, options.output)


def noisy(row: films.Row, chance: random.Random) -> str:
    """The prompt of a row; in a share `WRONG` one word of it is another one of its kind."""
    if chance.random() >= WRONG:
        return row["prompt"]
    kinds = {"color": films.COLORS, "shape": films.SHAPES, "direction": films.DIRECTIONS}
    while True:
        kind = chance.choice([*kinds])
        wrong = row["prompt"].replace(row[kind], chance.choice([*kinds[kind]]))
        if wrong != row["prompt"] and not held_out(wrong, HELD_OUT):
            return wrong


if __name__ == "__main__":
    main()
