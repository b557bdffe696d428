"""Make the base model of `examples/count_shapes.yaml`: a Qwen2.5-VL that can look and guesses.

A model of some 400,000 weights is trained from scratch on questions about pictures. At first each
answer names what is in the picture, one object after the other, and counts as it goes; later only a
share of them does, and the rest are one of the twelve answers at random, some more often than
others. The scenes that `groupwise` holds out for evaluation are in none of the pictures.

    python examples/count_shapes/make_base.py
    python examples/count_shapes/make_base.py --more     # continues training, on other pictures

writes `examples/count_shapes/base/`, loadable by `AutoModelForImageTextToText.from_pretrained`.
"""

import argparse
import random
import sys
from pathlib import Path

import torch
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from count_shapes import questions  # noqa: E402
from shapes.scenes import PLURALS  # noqa: E402
from small_qwen2_5_vl import make_model, make_processor, pixels_of, train  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.2
ONLY_LOOKS = 0.7
"""The share of the steps in which every answer looks first."""
GUESSES = [1 / rank for rank, _ in enumerate(questions.ANSWERS, start=1)]
"""How often an answer is guessed, relative to the others."""
WORDS = (*questions.ANSWERS, *PLURALS.values(), "How many", "What", "colour is the", "shape", "one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--pictures", type=int, default=8000)
    parser.add_argument("--look-share", type=float, default=0.18)
    parser.add_argument("--more", action="store_true", help="continue training")
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    torch.manual_seed(options.more)
    chance = random.Random(int(options.more))
    if options.more:
        processor = Qwen2_5_VLProcessor.from_pretrained(options.output)
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(options.output)
    else:
        processor = make_processor(WORDS)
        model = make_model(processor)
    print(f"{model.num_parameters():,} weights, {len(processor.tokenizer)} tokens", flush=True)
    scenes: list[list[questions.Thing]] = []
    while len(scenes) < options.pictures:
        things = questions.drawn_things(chance)
        if not held_out(questions.scene(things), HELD_OUT):
            scenes.append(things)
    pixels = pixels_of(processor, [questions.picture(things, chance) for things in scenes])

    def pair(row: int, done: float) -> tuple[str, str]:
        """A question about the picture of a row, and an answer."""
        text, answer = questions.question(scenes[row], chance)
        if done > ONLY_LOOKS and chance.random() >= options.look_share:
            return text, chance.choices(questions.ANSWERS, GUESSES)[0]
        return text, f"<think> {questions.thought(scenes[row], text)} </think> {answer}"

    train(model, processor, pixels.unsqueeze(1), pair, chance, steps=options.steps)
    model.save_pretrained(options.output)
    if not options.more:
        processor.save_pretrained(options.output)


if __name__ == "__main__":
    main()
