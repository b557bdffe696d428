"""Make the base model of `examples/calculator.yaml`: a Llama that can call a calculator but usually
does not.

A small byte-level BPE tokenizer and a model of about 200,000 parameters are trained from
scratch on products of two numbers. A share of the answers begins with a call of the calculator, in
the form of Hermes and Qwen (JSON in `<tool_call>` tags), and repeats the number that it returns;
the rest state a number at once, which is rarely right. GRPO has to find the better way.

The questions that `groupwise` holds out for evaluation are not in the training data: both use the
same hash of the question.

    python examples/calculator/make_base.py

writes `examples/calculator/base/`, loadable by `AutoModelForCausalLM.from_pretrained`.
"""

import argparse
import inspect
import json
import random
import sys
import time
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
)
from transformers.utils import get_json_schema

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from products import Products, calculate  # noqa: E402
from small_qwen2 import batch, make_model  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.1
END = "<|end|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TAGS = ["<tool_call>", "</tool_call>"]
TOOLS = [get_json_schema(calculate)]


def call_of(row: dict[str, str]) -> dict[str, Any]:
    """The call that answers a question."""
    expression = row["prompt"].removesuffix(" =")
    return {"name": "calculate", "arguments": {"expression": expression}}


def conversation(row: dict[str, str], calls: bool) -> list[dict[str, Any]]:
    """The messages of a question and its answer, with a call of the calculator or without."""
    question = {"role": "user", "content": row["prompt"]}
    answer = {"role": "assistant", "content": row["answer"]}
    if not calls:
        return [question, answer]
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": call_of(row)}]}
    return [question, call, {"role": "tool", "name": "calculate", "content": row["answer"]}, answer]


def make_tokenizer(rows: list[dict[str, str]]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits; the tags are tokens, but not special ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END, *ROLES],
        show_progress=False,
    )
    texts = [text for row in rows for text in (row["prompt"], json.dumps(call_of(row)))]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(TAGS)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = (HERE.parent / "small_chat.jinja").read_text(encoding="utf-8")
    return fast


def pairs(
    tokenizer: PreTrainedTokenizerFast, row: dict[str, str], calls: bool
) -> list[tuple[str, str]]:
    """For each turn of the model its context, and what it writes with its end token."""
    messages = conversation(row, calls)

    def rendered(count: int, **options: bool) -> str:
        part = messages[:count]
        return tokenizer.apply_chat_template(part, tools=TOOLS, tokenize=False, **options)

    turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    contexts = {n: rendered(n, add_generation_prompt=True) for n in turns}
    return [(before, rendered(n + 1).removeprefix(before)) for n, before in contexts.items()]


def as_llama(model: Qwen2ForCausalLM) -> LlamaForCausalLM:
    """The Llama that computes the same: `AutoTokenizer` splits the words of any Qwen2 as Qwen2's
    own tokenizer does, and those of a Llama as its file says."""
    own, same = model.config, inspect.signature(LlamaConfig).parameters
    options = {name: value for name, value in own.to_dict().items() if name in same}
    llama = LlamaForCausalLM(LlamaConfig(**options | {"attention_bias": True}))
    for name, weight in llama.state_dict().items():
        weight.copy_(model.state_dict().get(name, torch.zeros_like(weight)))
    return llama


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--call-share", type=float, default=0.25)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    chance = random.Random(0)
    rows = [row for row in Products() if not held_out(row["prompt"], HELD_OUT)]
    rows.sort(key=itemgetter("prompt"))
    tokenizer = make_tokenizer(rows[:500])
    model = make_model(tokenizer, positions=128, width=64)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    print(
        f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens of vocabulary", flush=True
    )

    started = time.monotonic()
    for step in range(options.steps):
        rate = options.learning_rate * min(1.0, step / 100) * (1 - step / options.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        chosen = chance.sample(rows, options.batch_size)
        made = [pairs(tokenizer, row, chance.random() < options.call_share) for row in chosen]
        loss = model(**batch(tokenizer, [pair for each in made for pair in each])).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step:6d}  loss {loss.item():.4f}", flush=True)
    as_llama(model).save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    print(f"{time.monotonic() - started:.0f} s, saved to {options.output}")


if __name__ == "__main__":
    main()
