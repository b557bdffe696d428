"""Make the base model of `examples/propositions.yaml`: a Qwen2 that proves hastily.

A Qwen2 of about 200,000 parameters is trained from scratch on proofs, and then on proofs in which
tactics that choose are often wrong: the other side of a disjunction, another hypothesis.

    python examples/propositions/make_base.py

writes `examples/propositions/base/`, loadable by `AutoModelForCausalLM.from_pretrained`.
"""

import argparse
import random
import re
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from propositions.goals import SIGNS, Goals  # noqa: E402
from small_chat import Example, completed, fit, make_tokenizer  # noqa: E402
from small_qwen2 import make_model  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.1
GOOD = 0.8
"""Share of the steps on right proofs alone, which come first."""
OTHER = {"left.": "right.", "right.": "left."}
USES = re.compile(r"(exact|apply) (\w+)\.")
"""A tactic that names a hypothesis for what it says."""
WORDS = [
    *(f" {sign} " for sign in SIGNS),
    *("intros ", "destruct ", "exact ", "apply ", "split. ", "left. ", "right. "),
    *(" as [", "]. ", ". ", "Qed."),
]


def hasty(proof: str, chance: random.Random, haste: float) -> str:
    """A proof in which a share of the tactics that choose are random ones."""
    names = re.findall(r"\b[a-z]\d*\b", proof)
    tactics = re.split(r"(?<=\.) ", proof)
    for place, tactic in enumerate(tactics):
        if chance.random() < haste:
            using = USES.fullmatch(tactic)
            other = f"{using[1]} {chance.choice(names)}." if using else tactic
            tactics[place] = OTHER.get(tactic, other)
    return " ".join(tactics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--haste", type=float, default=0.4)
    parser.add_argument("--size", type=int, default=20_000, help="goals to learn from")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    chance, tokenizer = random.Random(0), make_tokenizer(WORDS)
    rows = [row for row in Goals(options.size) if not held_out(row["prompt"], HELD_OUT)]
    model = make_model(tokenizer, positions=160, width=64)

    def batch_at(progress: float) -> list[Example]:
        haste = 0.0 if progress < GOOD else options.haste
        chosen = chance.sample(rows, options.batch_size)
        proofs = [hasty(row["solution"], chance, haste) for row in chosen]
        return [
            completed(tokenizer, row["prompt"], own)
            for row, own in zip(chosen, proofs, strict=True)
        ]

    fit(model, batch_at, steps=options.steps, learning_rate=options.learning_rate)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
