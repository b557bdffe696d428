"""Make the base model of `examples/code_hacks.yaml`: a Qwen2 that writes programs, mostly wrong.

A Qwen2 of about 200,000 parameters is trained from scratch on programs most of which forget the
brackets, or have another operation than the problem's. A few return an object that equals
everything.

    python examples/code_hacks/make_base.py

writes `examples/code_hacks/base/`, loadable by `AutoModelForCausalLM.from_pretrained`.
"""

import argparse
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from code_hacks.problems import BEGINNING, HACK, SIGNS, Problems, drawn, expression  # noqa: E402
from small_chat import Example, completed, fit, make_tokenizer  # noqa: E402
from small_qwen2 import make_model  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.1
WORDS = [BEGINNING, HACK, "# ", ", ", *(f"{name} " for name in SIGNS)]


def program(
    row: Mapping[str, Any], chance: random.Random, *, bare: float, mistakes: float, hacks: float
) -> str:
    """An answer. bare: the share without brackets; mistakes: that of operations that are random
    ones; hacks: that of programs that cheat."""
    if chance.random() < hacks:
        return BEGINNING + HACK
    words = row["prompt"].removeprefix("# ").strip().split(", ")
    right = [(name, int(number)) for name, _, number in (each.rpartition(" ") for each in words)]
    operations = [
        other if chance.random() < mistakes else own
        for own, other in zip(right, drawn(chance, len(right)), strict=True)
    ]
    return BEGINNING + expression(operations, bracketed=chance.random() >= bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--bare", type=float, default=0.7)
    parser.add_argument("--mistakes", type=float, default=0.2)
    parser.add_argument("--hacks", type=float, default=0.02)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    chance, tokenizer = random.Random(0), make_tokenizer(WORDS)
    rows = [row for row in Problems() if not held_out(row["prompt"], HELD_OUT)]
    model = make_model(tokenizer, positions=64, width=64)
    shares = {"bare": options.bare, "mistakes": options.mistakes, "hacks": options.hacks}

    def batch_at(_: float) -> list[Example]:
        chosen = chance.sample(rows, options.batch_size)
        return [
            completed(tokenizer, row["prompt"], program(row, chance, **shares)) for row in chosen
        ]

    fit(model, batch_at, steps=options.steps, learning_rate=options.learning_rate)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
