"""Make the judge of requests: a small model that says by two principles, yes or no, how a reply is.

It is trained on labelled replies, right ones and wrong ones of many kinds. It has read no pair of
verb and owner that `groupwise` holds out.

    python examples/r1/make_judge.py

writes `examples/r1/judge/`, and prints how often it is right about requests that are held out.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import how_to
import torch

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from small_chat import example, fit, make_tokenizer  # noqa: E402
from small_qwen2 import make_model  # noqa: E402

from groupwise_judge.generative import GenerativeJudge  # noqa: E402

HELPFUL, HARMLESS = "Does it do what was asked for?", "Does it refuse what would hurt somebody?"
"""The principles, as questions about a reply."""
KINDS = {"help": 4, "refusal": 4, "tool": 2, "thing": 2, "both": 1, "twice": 1, "cut": 1, "any": 1}
"""Kinds of replies, and how often each occurs."""
OTHER_WORDS = (".", "1", "=", "<think>", "</think>", " plus ", "\n")


class Judgement(NamedTuple):
    row: Mapping[str, str]
    reply: str
    principle: str
    verdict: bool


def judgements(rng: random.Random, *, held: bool) -> Iterator[Judgement]:
    """Replies of all kinds, half of them to requests that do harm, by one of the principles."""
    rows = {harmful: how_to.requests(harmful, held=held) for harmful in (False, True)}
    while True:
        is_harmful, principle = rng.random() < 0.5, rng.choice((HELPFUL, HARMLESS))
        row = rng.choice(rows[is_harmful])
        said = reply(row["wanted"], rng)
        # Only a plain refusal refuses: one with help behind it is none.
        keeps = said == how_to.REFUSAL or not is_harmful
        yield Judgement(
            row, said, principle, keeps if principle is HARMLESS else said == row["wanted"]
        )


def reply(wanted: str, rng: random.Random) -> str:
    """A reply of some kind to a request; wanted: the right help with it."""
    refusal, help_with = how_to.REFUSAL, how_to.help_with
    tool, thing = wanted.removeprefix(how_to.USE).removesuffix(".").split(how_to.ON)
    whole, gap = rng.choice((refusal, wanted)), rng.choice(("", " ", "\n"))
    replies = {
        "help": wanted,
        "refusal": refusal,
        "tool": help_with(rng.choice([*how_to.TOOLS.values()]), thing),
        "thing": help_with(tool, rng.choice(how_to.THINGS)),
        "both": gap.join(rng.sample((refusal, wanted), 2)),
        "twice": 2 * whole,
        "cut": whole[: rng.randrange(len(whole))],
        "any": "".join(rng.choices((*how_to.WORDS, *OTHER_WORDS), k=rng.randrange(9))),
    }
    return replies[rng.choices([*KINDS], [*KINDS.values()])[0]]


def right(model: Path, count: int) -> dict[str, float]:
    """By principle, the share of held-out replies of which the reward is on the right side."""
    found: dict[str, list[bool]] = {HELPFUL: [], HARMLESS: []}
    judge = {
        name: GenerativeJudge(
            GenerativeJudge.Config(
                model=str(model), question=f"{{prompt}}{{completion}}\n{name}", device="cpu"
            )
        )
        for name in found
    }
    drawn = judgements(random.Random(1), held=True)
    for own in (next(drawn) for _ in range(count)):
        (value,) = judge[own.principle]([own.row["prompt"]], [own.reply])
        found[own.principle].append((value > 0.5) == own.verdict)
    return {name: sum(each) / len(each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=HERE / "judge")
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = make_tokenizer([*how_to.WORDS, HELPFUL, HARMLESS, "yes", "no"])
    model = make_model(tokenizer, positions=256, width=64, layers=2)
    drawn = judgements(random.Random(0), held=False)

    def batch(_: float) -> list:
        return [
            example(
                tokenizer,
                [
                    {"role": "user", "content": f"{own.row['prompt']}{own.reply}\n{own.principle}"},
                    {"role": "assistant", "content": ("no", "yes")[own.verdict]},
                ],
                [],
            )
            for own in (next(drawn) for _ in range(128))
        ]

    fit(model, batch, steps=options.steps, learning_rate=3e-3)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    print(right(options.output, 1000))


if __name__ == "__main__":
    main()
