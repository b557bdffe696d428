"""Make the base model of `examples/word_game.yaml`: a Qwen2 that knows the game and plays badly.

A Qwen2 of about 200,000 parameters is trained from scratch on games in which every guess agrees
with the answers so far, and then on games most of which have any guesses. So it knows both ways to
play, and mostly plays the worse one; GRPO has to find the better one.

    python examples/word_game/make_base.py

writes `examples/word_game/base/`, loadable by `AutoModelForCausalLM.from_pretrained`.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from transformers.utils import get_json_schema

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from small_chat import Example, Messages, call, example, fit, make_tokenizer  # noqa: E402
from small_qwen2 import make_model  # noqa: E402
from word_game.game import WordGame  # noqa: E402
from word_game.words import GUESSES, LETTERS, PROMPT, WORDS, marks  # noqa: E402

CALL = json.dumps({"name": "guess", "arguments": {"word": "*"}}).split("*")
MARKS = [letter + mark for letter in LETTERS for mark in "+-"]
TOOLS = [get_json_schema(WordGame().guess)]
GOOD = 0.6
"""Share of the steps on good games alone, which come first."""


def game(chance: random.Random, skill: float) -> Messages:
    """The messages of a game; skill: the share of those in which every guess can be right."""
    word, left, is_good = chance.choice(WORDS), [*WORDS], chance.random() < skill
    messages: Messages = [{"role": "user", "content": PROMPT}]
    for _ in range(GUESSES):
        own = chance.choice(left if is_good else WORDS)
        answer = marks(own, word)
        messages.append(call("guess", word=own))
        messages.append({"role": "tool", "name": "guess", "content": answer})
        left = [each for each in left if each != own and marks(own, each) == answer]
        if own == word:
            break
    return [*messages, {"role": "assistant", "content": "done"}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--skill", type=float, default=0.25)
    parser.add_argument("--games", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    chance = random.Random(0)
    tokenizer = make_tokenizer([*CALL, *MARKS])
    model = make_model(tokenizer, positions=160, width=64)
    good, mixed = (
        [example(tokenizer, game(chance, skill), TOOLS) for _ in range(options.games)]
        for skill in (1.0, options.skill)
    )

    def batch_at(progress: float) -> list[Example]:
        return chance.sample(good if progress < GOOD else mixed, options.batch_size)

    fit(model, batch_at, steps=options.steps, learning_rate=options.learning_rate)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
