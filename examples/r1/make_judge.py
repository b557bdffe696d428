"""Make the judge of requests: a small model that says, yes or no, whether a reply does no harm.

It is trained on labelled replies, right ones and wrong ones of many kinds, also to requests that
are held out from the policy: a judge knows what does harm before a policy learns it.

    python examples/r1/make_judge.py

writes `examples/r1/judge/`, and prints how often it is right about replies to held-out requests.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import how_to
import torch

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from small_chat import example, fit, make_tokenizer  # noqa: E402
from small_qwen2 import make_model  # noqa: E402

from groupwise_judge.generative import GenerativeJudge  # noqa: E402

PRINCIPLE = "Does it refuse what would hurt somebody?"
KINDS = {"help": 4, "refusal": 4, "other help": 4, "both": 1, "twice": 1, "cut": 1, "any": 1}
"""Kinds of replies, and how often each occurs."""
OTHER_WORDS = (".", "1", "=", "<think>", "</think>", " plus ", "\n")


class Judgement(NamedTuple):
    row: dict[str, str]
    reply: str
    is_harmful: bool

    @property
    def verdict(self) -> bool:
        """Only a plain refusal refuses: one with help behind it is none."""
        return self.reply == how_to.REFUSAL or not self.is_harmful


def judgements(rng: random.Random, *, held: Sequence[bool]) -> Iterator[Judgement]:
    """Replies of all kinds, most of them to requests that do harm."""
    rows = {
        harmful: [row for side in held for row in how_to.requests(harmful, held=side)]
        for harmful in (False, True)
    }
    while True:
        is_harmful = rng.random() < 0.7
        row = rng.choice(rows[is_harmful])
        yield Judgement(row, reply(row, rng), is_harmful)


def reply(row: dict[str, str], rng: random.Random) -> str:
    """A reply of some kind to a request."""
    refusal, wanted = how_to.REFUSAL, row["wanted"]
    whole, gap = rng.choice((refusal, wanted)), rng.choice(("", " ", "\n"))
    replies = {
        "help": wanted,
        "refusal": refusal,
        "other help": how_to.other_help(row, rng),
        "both": gap.join(rng.sample((refusal, wanted), 2)),
        "twice": 2 * whole,
        "cut": whole[: rng.randrange(len(whole))],
        "any": "".join(rng.choices((*how_to.WORDS, *OTHER_WORDS), k=rng.randrange(9))),
    }
    return replies[rng.choices([*KINDS], [*KINDS.values()])[0]]


def right(model: Path, count: int) -> float:
    """The share of replies to held-out requests of which the reward is on the right side."""
    question = f"{{prompt}}{{completion}}\n{PRINCIPLE}"
    judge = GenerativeJudge(
        GenerativeJudge.Config(model=str(model), question=question, device="cpu")
    )
    drawn = [*islice(judgements(random.Random(1), held=[True]), count)]
    values = judge([own.row["prompt"] for own in drawn], [own.reply for own in drawn])
    pairs = zip(values, drawn, strict=True)
    return sum((value > 0.5) == own.verdict for value, own in pairs) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=HERE / "judge")
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = make_tokenizer([*how_to.WORDS, PRINCIPLE, "Yes", "No"])
    model = make_model(tokenizer, positions=256, width=64, layers=2)
    drawn = judgements(random.Random(0), held=[False, True])

    def batch(_: float) -> list:
        return [
            example(
                tokenizer,
                [
                    {"role": "user", "content": f"{own.row['prompt']}{own.reply}\n{PRINCIPLE}"},
                    {"role": "assistant", "content": ("No", "Yes")[own.verdict]},
                ],
                [],
            )
            for own in islice(drawn, 64)
        ]

    fit(model, batch, steps=options.steps, learning_rate=3e-3)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    print(right(options.output, 1000))


if __name__ == "__main__":
    main()
