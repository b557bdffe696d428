"""Make the base model of `examples/recolor.yaml`: a small FLUX.1 Kontext that edits carelessly.

    python examples/recolor/make_base.py

Its autoencoder is that of `examples/shapes`. Its transformer and text encoders are trained on
pairs of pictures that are as careless as those of the web: in a share of them a word of the
instruction is wrong, and in a share the other shape has changed, too. So the model can do every
edit and leave the rest alone, but often does neither; GRPO has to teach it. The scenes that
`groupwise` holds out for evaluation are in no pair. The base in `recolor/base` had 27 minutes of
processor time, since the machine was busy.
"""

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import small_kontext  # noqa: E402
import small_sd3  # noqa: E402
from recolor import edits  # noqa: E402
from shapes.scenes import COLOURS, SHAPES  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.2
WRONG = 0.4
"""The share of instructions with a wrong word."""
CARELESS = 0.35
"""The share of results in which the other shape has changed."""
LENGTH = 5
"""Tokens of an instruction, with the one at its end."""
INSTRUCTIONS = [
    *(f"make the {shape} {color}" for shape in SHAPES for color in COLOURS),
    *(f"move the {shape} {direction}" for shape in SHAPES for direction in edits.DIRECTIONS),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=27.0)
    parser.add_argument("--pairs", type=int, default=24_000)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    torch.manual_seed(0)
    chance = random.Random(0)
    started = time.monotonic()
    vae = small_sd3.load(HERE.parent / "shapes" / "base").vae
    pipe = small_kontext.pipeline(INSTRUCTIONS, vae, length=LENGTH + 1)
    pairs = [draw_pair(chance) for _ in range(options.pairs)]
    sources, results = (
        small_kontext.packed(vae, torch.stack([small_sd3.to_tensor(own) for own in pictures]))
        for pictures in (
            [pair.source(chance) for pair in pairs],
            [carelessly(pair, chance).result(chance) for pair in pairs],
        )
    )
    print(f"{len(pairs)} pairs, {time.monotonic() - started:.0f} s", flush=True)

    def instruction(number: int) -> str:
        return noisy(pairs[number], chance)

    updates = small_kontext.train_flow(
        pipe, sources, results, instruction, length=LENGTH, minutes=options.minutes
    )
    print(f"{updates} updates, {time.monotonic() - started:.0f} s", flush=True)
    small_sd3.save(pipe, options.output)


def draw_pair(chance: random.Random) -> edits.Edit:
    """An edit that is not held out."""
    while held_out((pair := edits.draw_edit(chance)).scene, HELD_OUT):
        pass
    return pair


def carelessly(pair: edits.Edit, chance: random.Random) -> edits.Edit:
    """The edit; in a share `CARELESS` with another colour or place of the other shape."""
    if chance.random() >= CARELESS:
        return pair
    other = pair.before[1]
    if chance.random() < 0.5:
        colors = [name for name in COLOURS if name != other.color]
        changed = replace(other, color=chance.choice(colors))
    else:
        while True:
            changed = replace(other, place=edits.place(chance))
            if edits.apart(pair.after, changed, pair.radius):
                break
    return replace(pair, before=(pair.before[0], changed))


def noisy(pair: edits.Edit, chance: random.Random) -> str:
    """The instruction of a pair; in a share `WRONG` another shape, colour or direction."""
    if chance.random() >= WRONG:
        return pair.instruction
    *verb, shape, how = pair.instruction.split()
    kind = COLOURS if how in COLOURS else edits.DIRECTIONS
    while True:
        words = [*verb, pair.before[1].shape, how]
        if chance.random() < 0.5:
            words = [*verb, shape, chance.choice([*kind])]
        wrong = replace(pair, instruction=" ".join(words))
        if wrong.instruction != pair.instruction and not held_out(wrong.scene, HELD_OUT):
            return wrong.instruction


if __name__ == "__main__":
    main()
