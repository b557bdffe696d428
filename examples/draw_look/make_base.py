"""Make the two models of `examples/draw_look.yaml`.

    python examples/draw_look/make_base.py painter --minutes 6
    python examples/draw_look/make_base.py looker

The painter is that of `shapes`, trained further on captions half of which end in a correction: two
words, such as "red disk", that always fit the picture, while a share of the captions has a wrong
word. The looker, a Qwen2.5-VL of some 400,000 weights, is trained on drawn pictures with prompts
half of which have a wrong word: it describes the picture, and then says "fine" or, in words that
the painter knows, what should be different. Prompts that `groupwise` holds out are in neither.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import small_qwen2_5_vl  # noqa: E402
import small_sd3  # noqa: E402
from draw_look.studio import FINE, Scenes  # noqa: E402
from shapes import scenes  # noqa: E402
from shapes.make_base import HELD_OUT, Captions  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

OPPOSITE = {"right of": "left of", "below": "above"}


def facts(row: scenes.Row) -> tuple[str, str, str]:
    """The first object of a scene, how it stands to the second, and the second."""
    first, second = row["include"]
    one, other = (f"{each['color']} {each['class']}" for each in (first, second))
    return one, first["position"][0], other


def description(row: scenes.Row) -> str:
    """What the looker thinks of a picture: its objects from left to right, or top to bottom."""
    one, relation, other = facts(row)
    if relation in OPPOSITE:
        one, relation, other = other, OPPOSITE[relation], one
    return f"{one} {relation} {other}"


def make_painter(rows: list[scenes.Row], chance: random.Random, minutes: float) -> None:
    drawn = [chance.choice(rows) for _ in range(12_000)]
    pictures = torch.stack([small_sd3.to_tensor(scenes.draw(row, chance)) for row in drawn])
    pipe = small_sd3.load(HERE.parent / "shapes" / "base")
    captions = Captions(drawn, chance)

    def caption(number: int) -> str:
        end = f" {chance.choice(facts(drawn[number]))}" if chance.random() < 0.5 else ""
        return captions(number) + end

    latents = small_sd3.encode(pipe.vae, pictures)
    updates = small_sd3.train_flow(pipe, latents, caption, minutes=minutes)
    print(f"{updates} updates", flush=True)
    small_sd3.save(pipe, HERE / "painter")


def make_looker(rows: list[scenes.Row], chance: random.Random, steps: int) -> None:
    torch.manual_seed(0)
    words = {word for row in rows for word in row["prompt"].split()} | {FINE}
    processor = small_qwen2_5_vl.make_processor(sorted(words))
    model = small_qwen2_5_vl.make_model(processor)
    drawn = [chance.choice(rows) for _ in range(4000)]
    pixels = small_qwen2_5_vl.pixels_of(processor, [scenes.draw(row, chance) for row in drawn])
    by_prompt = {row["prompt"]: row for row in rows}
    captions = Captions(drawn, chance)

    def pair(number: int, _: float) -> tuple[str, str]:
        row = drawn[number]
        prompt = row["prompt"]
        if chance.random() < 0.5:
            prompt = captions.mistaken(prompt)
        asked = by_prompt.get(prompt, row)
        wrong = [own for own, real in zip(facts(asked), facts(row), strict=True) if own != real]
        answer = wrong[0] if wrong else FINE
        return asked["prompt"], f"<think> {description(row)} </think> {answer}"

    small_qwen2_5_vl.train(model, processor, pixels, pair, chance, steps=steps)
    model.save_pretrained(HERE / "looker")
    processor.save_pretrained(HERE / "looker")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["painter", "looker"])
    parser.add_argument("--minutes", type=float, default=6, help="of training the painter")
    parser.add_argument("--steps", type=int, default=2000, help="of training the looker")
    options = parser.parse_args()
    chance: Any = random.Random(0)
    torch.manual_seed(0)
    rows = [row for row in Scenes() if not held_out(row["prompt"], HELD_OUT)]
    if options.which == "painter":
        make_painter(rows, chance, options.minutes)
    else:
        make_looker(rows, chance, options.steps)


if __name__ == "__main__":
    main()
