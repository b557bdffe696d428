"""Make the judge of `examples/iterative/run.yaml`: a reward model, trained once.

It starts from the base model of `examples/arithmetic.yaml` with a new head, and is trained to
predict which of that model's own answers a verifier accepts. This is how reward models usually are
trained: on labelled samples of the initial policy.

    python examples/iterative/make_judge.py --output runs/iterative/judge
"""

import argparse
from pathlib import Path

import torch

from groupwise.learned import Examples
from groupwise.prompts.split import held_out
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_verifiable.puzzles.source import ReasoningGym
from groupwise_verifiable.text.answers import NumericAnswer
from groupwise_verifiable.text.learned import LearnedText

BASE = Path(__file__).parents[1] / "arithmetic" / "base"
TASK = {"min_terms": 4, "max_terms": 6, "min_digits": 2, "max_digits": 2}


def labelled(judge: LearnedText, count: int) -> Examples:
    """Sampled answers to `count` prompts that are not held out, with label 1 if right, else 0."""
    policy = LanguageModel(Settings(model=str(BASE), max_new_tokens=88))
    policy.place("cpu")
    settings = {"task": "chain_sum", "options": TASK, "template": "{question}\n", "seed": 1}
    source = ReasoningGym(ReasoningGym.Config(**settings))
    rows = [source[number] for number in range(2 * count)]
    rows = [row for row in rows if not held_out(row["question"], 0.1)][:count]
    rollouts = policy.sample(rows, group_size=1, seeds=range(count))
    labels = NumericAnswer(NumericAnswer.Config(extract="tag"))(
        prompts=[row["prompt"] for row in rows],
        completions=rollouts.completions,
        answer=[row["answer"] for row in rows],
        truncated=rollouts.truncated.tolist(),
    )
    return Examples(judge.inputs(rollouts), torch.tensor(labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    judge = LearnedText(
        LearnedText.Config(
            model=str(BASE),
            device="cpu",
            labels="verifier",
            learning_rate=3e-4,
            examples=16,
            epochs=options.epochs,
        )
    )
    examples = labelled(judge, options.examples + 128)
    rows = torch.arange(len(examples))
    judge.learn(examples.take(rows[128:]))
    unseen = judge.learn(examples.take(rows[:128]))  # metrics are from before training on them
    print({name: round(value, 3) for name, value in unseen.items()})
    model, tokenizer = judge.loaded()
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
