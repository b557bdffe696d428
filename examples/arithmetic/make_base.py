"""Make the base model of `examples/arithmetic.yaml`: a Qwen2 that can reason but usually does not.

A small byte-level BPE tokenizer and a Qwen2 of about a million parameters are trained from scratch
on sums of reasoning-gym (`chain_sum`). A share of the answers is worked out step by step inside the
think tags; the rest leave the tags empty and state a bare answer, which is rarely right. So the
model knows both ways of answering and prefers the worse one; GRPO has to find the better one.

The problems that `groupwise` holds out for evaluation are not in the training data: both use the
same hash of the question.

    python examples/arithmetic/make_base.py --minutes 50

writes `examples/arithmetic/base/`, loadable by `AutoModelForCausalLM.from_pretrained`.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import reasoning_gym
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parents[1]))

from small_qwen2 import batch, make_model

from groupwise.prompts.split import held_out

TASK = {"min_terms": 4, "max_terms": 6, "min_digits": 2, "max_digits": 2}
HELD_OUT = 0.1
END = "<|end|>"
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] + '\\n' }}{% endfor %}"


def problems(seed: int, size: int) -> list[dict]:
    """Entries of reasoning-gym's `chain_sum` that are not held out."""
    dataset = reasoning_gym.create_dataset("chain_sum", seed=seed, size=size, **TASK)
    return [entry for entry in dataset if not held_out(entry["question"], HELD_OUT)]


def worked(expression: str) -> str:
    """The running total after each term, one step per line: `3 + 5 - 9` -> `3+5=8`, `8-9=-1`."""
    terms = expression.split()
    total, lines = int(terms[0]), []
    for sign, term in zip(terms[1::2], terms[2::2], strict=True):
        after = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total}{sign}{term}={after}")
        total = after
    return "\n".join(lines)


def completion(entry: dict, think: bool) -> str:
    """An answer in R1's format; without `think` the thinking is empty."""
    thought = worked(entry["metadata"]["expression"]) if think else ""
    return f"<think>\n{thought}\n</think>\n<answer>\n{entry['answer']}\n</answer>"


def make_tokenizer(corpus: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits; the tags are tokens, but not special ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens(TAGS)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def pair(entry: dict, think_share: float, rng: random.Random) -> tuple[str, str]:
    """A question and an answer with its end token."""
    return entry["question"] + "\n", completion(entry, rng.random() < think_share) + END


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=50)
    parser.add_argument("--think-share", type=float, default=0.4)
    parser.add_argument("--width", type=int, default=128, help="of the model's hidden states")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    rng = random.Random(0)
    sample = problems(seed=10**9, size=2000)
    tokenizer = make_tokenizer(
        [text for e in sample for text in (e["question"] + "\n", completion(e, True))]
    )
    model = make_model(tokenizer, positions=512, width=options.width)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    print(
        f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens of vocabulary", flush=True
    )

    # The schedule follows the clock, not a step count, so it fits the time budget on any machine.
    started, step, seconds = time.monotonic(), 0, options.minutes * 60
    while (done := (time.monotonic() - started) / seconds) < 1:
        rate = options.learning_rate * min(1.0, step / 200) * (1 - done)
        for group in optimizer.param_groups:
            group["lr"] = rate
        # Item i of seed s is drawn from s + i; seeds 1000 apart give batches without common items.
        entries = problems(seed=2 * 10**9 + step * 1000, size=options.batch_size)
        pairs = [pair(entry, options.think_share, rng) for entry in entries]
        loss = model(**batch(tokenizer, pairs)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"{done:5.0%}  step {step:6d}  loss {loss.item():.4f}", flush=True)
            model.save_pretrained(options.output)
            tokenizer.save_pretrained(options.output)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    print(f"{step} steps in {options.minutes:g} minutes, saved to {options.output}")


if __name__ == "__main__":
    main()
