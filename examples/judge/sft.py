"""Supervised training of a judge on judgements: those that a rule writes, or its own right ones.

    python examples/judge/sft.py --model base --output cold              # a rule's
    python examples/judge/sft.py --model cold --output more --data sampled.jsonl

--data: what `groupwise sample` wrote; of its rows the right ones are taken.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "shapes")]

from judge.judgements import judgement, pair, question  # noqa: E402
from judge.make_base import TRAINING  # noqa: E402
from shapes import scenes  # noqa: E402
from small_qwen2_5_vl import pixels_of, train  # noqa: E402

Example = tuple[list[Any], str, str]
"""Two pictures, a question, a judgement."""


def of_the_rule(count: int, chance: random.Random) -> Iterator[Example]:
    """Judgements of painted pictures that a rule writes, which knows what is in them; the paper
    has them from GPT-4o."""
    for caption in chance.choices([*TRAINING.values()], k=count):
        two = pair(caption, TRAINING, chance)
        pictures = [scenes.draw(own, chance) for own in two]
        yield pictures, question(caption["prompt"]), judgement(caption, two)


def of_the_judge(path: Path) -> Iterator[Example]:
    """Its own right judgements."""
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if row["right"]:
            pictures = [_opened(path.parent / name) for name in row["images"]]
            yield pictures, row["prompt"][0]["content"], row["completion"][0]["content"]


def _opened(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--count", type=int, default=400, help="of the rule's judgements")
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    torch.manual_seed(options.seed)
    chance = random.Random(options.seed)
    processor = Qwen2_5_VLProcessor.from_pretrained(options.model)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(options.model)
    of_rule = options.data is None
    examples = [*(of_the_rule(options.count, chance) if of_rule else of_the_judge(options.data))]
    if not examples:
        raise SystemExit(f"{options.data} has no right judgement; train the judge for longer first")
    pictures = [picture for two, _, _ in examples for picture in two]
    pixels = pixels_of(processor, pictures)
    pixels = pixels.view(-1, 2, *pixels.shape[1:])
    print(f"{len(examples)} judgements", flush=True)
    train(
        model,
        processor,
        pixels,
        lambda row, _: examples[row][1:],
        chance,
        steps=options.steps,
        rate=options.rate,
    )
    model.save_pretrained(options.output)
    processor.save_pretrained(options.output)


if __name__ == "__main__":
    main()
