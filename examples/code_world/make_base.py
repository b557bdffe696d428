"""Make the base model of `examples/code_world.yaml`: a Qwen2 that can run a program, and guesses.

A Qwen2 of about 200,000 parameters is trained from scratch on answers most of which state the
number at once, which is rarely right; the rest run the program first, and repeat what it prints.
It does not learn what the interpreter answers.

    python examples/code_world/make_base.py

writes `examples/code_world/base/`, loadable by `AutoModelForCausalLM.from_pretrained`.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.utils import get_json_schema

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from code_world.programs import STATEMENTS, Programs, World, run  # noqa: E402
from small_chat import Example, Messages, call, example, fit, make_tokenizer  # noqa: E402
from small_qwen2 import make_model  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.1
CALL = json.dumps({"name": "run", "arguments": {}})
WORDS = [CALL, *STATEMENTS, "a=", "b=", "print "]
TOOLS = [get_json_schema(World().run)]


def conversation(row: Mapping[str, Any], *, runs: bool) -> Messages:
    """A question and its answer; runs: whether the program is run before."""
    question = {"role": "user", "content": row["prompt"]}
    answer = {"role": "assistant", "content": row["answer"]}
    if not runs:
        return [question, answer]
    seen = {"role": "tool", "name": "run", "content": run(row["program"])}
    return [question, call("run"), seen, answer]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--run-share", type=float, default=0.4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    chance, tokenizer = random.Random(0), make_tokenizer(WORDS)
    rows = [row for row in Programs() if not held_out(row["prompt"], HELD_OUT)]
    model = make_model(tokenizer, positions=96, width=64)

    def drawn(row: Mapping[str, Any]) -> Example:
        messages = conversation(row, runs=chance.random() < options.run_share)
        return example(tokenizer, messages, TOOLS)

    def batch_at(_: float) -> list[Example]:
        return [drawn(row) for row in chance.sample(rows, options.batch_size)]

    fit(model, batch_at, steps=options.steps, learning_rate=options.learning_rate)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
