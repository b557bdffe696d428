"""Make the base model of `examples/count_shapes.yaml`: a Qwen2.5-VL that can look but often guesses.

A model of some 400,000 weights is trained from scratch on questions about pictures. A share of the
answers first names what is in the picture, one object after the other, and is right; the rest are
one of the twelve answers at random. In the descriptions, as in captions of the web, some words are
wrong. The scenes that `groupwise` holds out for evaluation are in none of them.

    python examples/count_shapes/make_base.py

writes `examples/count_shapes/base/`, loadable by `AutoModelForImageTextToText.from_pretrained`.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from count_shapes import questions  # noqa: E402
from shapes.scenes import COLOURS, PLURALS, SHAPES  # noqa: E402
from small_qwen2_5_vl import Pixels, batch, cool, make_model, make_processor  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.2


def looked(things: list[questions.Thing], answer: str, wrong: float, chance: random.Random) -> str:
    """An answer that names what is in the picture first, each word wrong with probability `wrong`."""

    def seen(word: str, words: list[str]) -> str:
        return chance.choice(words) if chance.random() < wrong else word

    noisy = [(seen(one, list(COLOURS)), seen(two, list(SHAPES))) for one, two in things]
    return f"<think> {questions.thought(noisy)} </think> {answer}"


def words() -> list[str]:
    """Every word of questions and answers, as it stands in a sentence."""
    each = [*questions.ANSWERS, *PLURALS.values(), "colour", "is the", "shape", "one"]
    return [f"user assistant How many What {' '.join(each)}?, "] * 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--look-share", type=float, default=0.3)
    parser.add_argument("--wrong", type=float, default=0.1, help="share of wrong words")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--spread", type=float, default=0.08)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    chance = random.Random(0)
    processor = make_processor(words())
    model = make_model(processor, width=options.width, layers=options.layers, depth=options.depth, spread=options.spread)
    print(f"{model.num_parameters():,} weights, {len(processor.tokenizer)} tokens", flush=True)
    scenes = []
    while len(scenes) < options.pictures:
        things = questions.drawn_things(chance)
        if not held_out(questions.scene(things), HELD_OUT):
            scenes.append(things)
    pixels = Pixels.of(processor, [questions.picture(things, chance) for things in scenes]).values
    print("pictures", flush=True)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    started = time.monotonic()
    looks, mean = 0.0, 0.0
    for step in range(options.steps):
        if time.monotonic() - started > 60 * options.minutes: break
        cool(optimizer, options.learning_rate, step / options.steps)
        rows = chance.sample(range(len(scenes)), options.batch_size)
        pairs = []
        for row in rows:
            text, answer = questions.question(scenes[row], chance)
            if chance.random() < options.look_share:
                pairs.append((text, looked(scenes[row], answer, options.wrong, chance)))
            else:
                pairs.append((text, chance.choice(questions.ANSWERS)))
        loss = model(**batch(processor, pixels[rows], pairs)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = 0.98 * mean + 0.02 * loss.item()
        if step % 20 == 0:
            print(f"step {step:6d}  loss {mean:.4f}  {time.monotonic() - started:.0f} s", flush=True)
    model.save_pretrained(options.output)
    processor.save_pretrained(options.output)
    print(f"{time.monotonic() - started:.0f} s, saved to {options.output}")


if __name__ == "__main__":
    main()
