"""How well a model of `examples/code_world.yaml` knows what statements do: nothing is run for it.

    python examples/code_world/predict.py runs/code_world [another run ...]

For held-out programs, the shares of statements after which the model's likeliest values of a and b
are right, and of programs whose printed number is, given the interpreter's answer up to there.
"""

import argparse
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import get_json_schema

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from code_world.programs import LENGTH, Programs, World, run  # noqa: E402
from small_chat import call  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.1
BASE = HERE / "base"
TOOLS = [get_json_schema(World().run)]


@torch.no_grad()
def right_digits(folder: Path, programs: list[str]) -> Tensor:
    """[programs, 2 LENGTH + 1] bool: whether the likeliest token is the interpreter's digit: of a
    and b after each statement, and of what is printed."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [context(tokenizer, program) + run(program) for program in programs]
    ids = torch.tensor(tokenizer(texts)["input_ids"])  # all of one length
    start = len(tokenizer(context(tokenizer, programs[0]))["input_ids"])
    likeliest = model(ids).logits[:, start - 1 : -1].argmax(dim=2)
    right = likeliest == ids[:, start:]
    # A statement has five tokens (`swap`, `:`, two digits, a space), the last line four.
    digits = [5 * line + digit for line in range(LENGTH) for digit in (2, 3)]
    return right[:, [*digits, -1]]


def context(tokenizer: Any, program: str) -> str:
    """A conversation up to where the interpreter answers."""
    question = {"role": "user", "content": program}
    messages = [question, call("run"), {"role": "tool", "content": "*"}]
    text: str = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
    return text[: text.rindex("*")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--programs", type=int, default=500)
    options = parser.parse_args()
    prompts = (row["program"] for row in Programs())
    programs = [*islice((p for p in prompts if held_out(p, HELD_OUT)), options.programs)]
    print("| model | values after a statement | printed number |\n|---|---|---|")
    for name, folder in {
        "before": BASE,
        **{own.name: own / "model" for own in options.runs},
    }.items():
        right = right_digits(folder, programs)
        values = right[:, :-1].unflatten(1, (LENGTH, 2)).all(dim=2).float().mean()
        print(f"| {name} | {values:.3f} | {right[:, -1].float().mean():.3f} |")


if __name__ == "__main__":
    main()
