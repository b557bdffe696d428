"""Make the base model of `examples/word_game.yaml`: a Qwen2 that knows the game and plays badly.

A Qwen2 of about 200,000 parameters is trained from scratch on games in which every guess agrees
with the answers so far, and then on games most of which have any guesses. So it knows both ways to
play, and mostly plays the worse one; GRPO has to find the better one.

    python examples/word_game/make_base.py --steps 600

writes `examples/word_game/base/`, loadable by `AutoModelForCausalLM.from_pretrained`.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import get_json_schema

sys.path.insert(0, str(Path(__file__).parents[1]))

from small_qwen2 import make_model
from word_game.game import WordGame
from word_game.words import GUESSES, WORDS, marks

HERE = Path(__file__).parent
END = "<|end|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
CALL = json.dumps({"name": "guess", "arguments": {"word": "*"}}).split("*")
TAGS = ["<tool_call>", "</tool_call>", *CALL]
TOOLS = [get_json_schema(WordGame().guess)]


def game(chance: random.Random, skill: float) -> list[dict[str, Any]]:
    """The messages of a game; skill: the share of those in which every guess can be right."""
    word, left, is_good = chance.choice(WORDS), [*WORDS], chance.random() < skill
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Guess the word."}]
    for _ in range(GUESSES):
        own = chance.choice(left if is_good else WORDS)
        answer = marks(own, word)
        call = {"function": {"name": "guess", "arguments": {"word": own}}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "name": "guess", "content": answer})
        left = [each for each in left if each != own and marks(own, each) == answer]
        if own == word:
            break
    return [*messages, {"role": "assistant", "content": "done"}]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Single bytes, and what is the same in every call as one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([END, *ROLES, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, *ROLES])
    tokenizer.add_tokens(TAGS)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = (HERE / "template.jinja").read_text(encoding="utf-8")
    return fast


def ids_and_labels(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """[t] int64 each: a conversation, and of it what the model writes, -100 elsewhere."""
    text = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
    assistant, end = tokenizer.convert_tokens_to_ids(["<|assistant|>", END])
    ids, labels, is_own = tokenizer(text)["input_ids"], [], False
    for token in ids:
        labels.append(token if is_own else -100)
        is_own = (is_own or token == assistant) and token != end
    return torch.tensor(ids), torch.tensor(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--skill", type=float, default=0.25)
    parser.add_argument("--games", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    chance = random.Random(0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, positions=160, width=64)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens of vocabulary")
    good, mixed = (
        [ids_and_labels(tokenizer, game(chance, skill)) for _ in range(options.games)]
        for skill in (1.0, options.skill)
    )
    pad, started = torch.nn.utils.rnn.pad_sequence, time.monotonic()
    for step in range(1, options.steps + 1):
        rate = options.learning_rate * min(1.0, step / 200) * (1 - step / options.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        games = good if step < 0.6 * options.steps else mixed
        ids, labels = zip(*chance.sample(games, options.batch_size), strict=True)
        loss = model(
            input_ids=pad(ids, batch_first=True, padding_value=tokenizer.pad_token_id),
            attention_mask=pad([torch.ones_like(row) for row in ids], batch_first=True),
            labels=pad(labels, batch_first=True, padding_value=-100),
        ).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            minutes = (time.monotonic() - started) / 60
            print(f"step {step:5d}  loss {loss.item():.4f}  {minutes:.1f} minutes", flush=True)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
