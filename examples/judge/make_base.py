"""Make the base model of `examples/judge`: it says what is wrong with either of two pictures, and
has never judged any.

    python examples/judge/make_base.py

It is the eyes of `examples/draw_look`, taught further with two pictures, of which it describes one:
"Image 2: red disk above blue square: not left of". It writes `examples/judge/base/`. The pictures
are of the rule's making, and captions that `groupwise` holds out are in none of them.
"""

import argparse
import random
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "shapes")]

from judge.judgements import CAPTIONS, TAGS, WORDS, line, pair, question  # noqa: E402
from shapes import scenes  # noqa: E402
from small_qwen2_5_vl import inherit, make_model, make_processor, pixels_of, train  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.2
TRAINING = {row["prompt"]: row for row in CAPTIONS if not held_out(row["prompt"], HELD_OUT)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=12_000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    torch.manual_seed(0)
    chance = random.Random(0)
    processor = make_processor(WORDS, TAGS)
    model = make_model(processor)
    inherit(model, processor, HERE.parent / "draw_look" / "eyes")
    print(f"{model.num_parameters():,} weights, {len(processor.tokenizer)} tokens", flush=True)
    captions = chance.choices([*TRAINING.values()], k=options.pairs)
    shown = [pair(caption, TRAINING, chance) for caption in captions]
    pictures = [scenes.draw(row, chance) for two in shown for row in two]
    pixels = pixels_of(processor, pictures)
    pixels = pixels.view(-1, 2, *pixels.shape[1:])

    def described(row: int, _: float) -> tuple[str, str]:
        number, caption = chance.randrange(2), captions[row]
        return question(caption["prompt"]), line(number + 1, caption, shown[row][number])

    train(model, processor, pixels, described, chance, steps=options.steps, rate=options.rate)
    model.save_pretrained(options.output)
    processor.save_pretrained(options.output)


if __name__ == "__main__":
    main()
