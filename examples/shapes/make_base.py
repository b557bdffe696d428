"""Make the base model of `examples/shapes.yaml`: a small SD3 that roughly follows its prompt.

    python examples/shapes/make_base.py --minutes 25
    python examples/shapes/make_base.py --minutes 30 --more     # continues training

The model is trained on pictures with noisy captions, like those of the web: in a share of them one
word is wrong. So it can draw every shape, colour and relation, but confuses them; GRPO has to teach
it to follow the prompt. The prompts that `groupwise` holds out for evaluation are in no caption.
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

import scenes  # noqa: E402
import small_sd3  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.2
WRONG = 0.3
"""The share of captions with a wrong word."""
SHARES = {"single_object": 0.1, "counting": 0.1, "position": 0.8}


TIMES = {"single_object": 4, "counting": 4, "position": 1}
"""Copies of each prompt in the dataset: without them GRPO would rarely draw the small kinds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--pictures", type=int, default=24_000)
    parser.add_argument("--more", action="store_true", help="continue training the transformer")
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    torch.manual_seed(0)
    chance = random.Random(0)
    everything = list(scenes.rows())
    write(everything, HERE / "prompts.jsonl")
    training = [row for row in everything if not held_out(row["prompt"], HELD_OUT)]
    drawn = draw_rows(training, options.pictures, chance)
    pictures = torch.stack([small_sd3.to_tensor(scenes.draw(row, chance)) for row in drawn])
    print(f"{len(pictures)} pictures of {len(training)} of {len(everything)} prompts", flush=True)
    started = time.monotonic()
    if options.more:
        pipe = small_sd3.load(options.output)
    else:
        pipe = small_sd3.pipeline([row["prompt"] for row in everything], length=12)
        error = small_sd3.train_autoencoder(pipe.vae, pictures, minutes=5)
        print(f"autoencoder: pixel error {error:.4f}", flush=True)
    latents, captions = small_sd3.encode(pipe.vae, pictures), Captions(drawn, chance)
    left = options.minutes - (time.monotonic() - started) / 60
    updates = small_sd3.train_flow(pipe, latents, captions, minutes=left)
    print(f"transformer: {updates} updates, {time.monotonic() - started:.0f} s", flush=True)
    small_sd3.save(pipe, options.output)


class Captions:
    """The caption of a picture by its index; a share `WRONG` of them has one wrong word."""

    def __init__(self, rows: list[scenes.Row], chance: random.Random) -> None:
        self.rows, self.chance = rows, chance

    def __call__(self, number: int) -> str:
        prompt: str = self.rows[number]["prompt"]
        if self.chance.random() >= WRONG:
            return prompt
        while True:
            wrong = self.mistaken(prompt)
            if wrong != prompt and not held_out(wrong, HELD_OUT):
                return wrong

    def mistaken(self, prompt: str) -> str:
        """The prompt with one word (or relation) replaced by a random one of its kind."""
        words = prompt.replace(" of ", "_of ").split()
        places = [i for i, word in enumerate(words) if alternatives(word)]
        place = self.chance.choice(places)
        words[place] = self.chance.choice(alternatives(words[place]))
        return " ".join(words).replace("_of ", " of ")


def alternatives(word: str) -> list[str]:
    """All words of the same kind; [] for words without meaning."""
    relations = [relation.replace(" of", "_of") for relation in scenes.RELATIONS]
    for kind in (scenes.COLOURS, scenes.SHAPES, scenes.PLURALS.values(), relations):
        if word in kind:
            return list(kind)
    return []


def draw_rows(rows: list[scenes.Row], count: int, chance: random.Random) -> list[scenes.Row]:
    by_tag = {tag: [row for row in rows if row["tag"] == tag] for tag in SHARES}
    tags = chance.choices(list(SHARES), weights=list(SHARES.values()), k=count)
    return [chance.choice(by_tag[tag]) for tag in tags]


def write(rows: list[scenes.Row], path: Path) -> None:
    lines = [json.dumps(row) + "\n" for row in rows for _ in range(TIMES[row["tag"]])]
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
