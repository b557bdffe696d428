"""A tokenizer of single bytes for chats with tools, and the training of a small model on them.

Several `make_base.py` use it, as those of `word_game` and `repair`; the template is also that of
`calculator`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

END = "<|end|>"
ASSISTANT = "<|assistant|>"
ROLES = ["<|system|>", "<|user|>", ASSISTANT, "<|tool|>"]
TAGS = ["<tool_call>", "</tool_call>"]
TEMPLATE = Path(__file__).with_name("small_chat.jinja")
Messages = list[dict[str, Any]]
Example = tuple[Tensor, Tensor]
"""[t] int64 each: the ids of a conversation, and of them what the model is to write, else -100."""


def make_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """words: what is one token, beside the tags and single bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([END, *ROLES, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, *ROLES])
    tokenizer.add_tokens([*TAGS, *words])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = TEMPLATE.read_text(encoding="utf-8")
    return fast


def call(name: str, **arguments: str) -> dict[str, Any]:
    """A message of the assistant that calls a tool."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}


def example(
    tokenizer: PreTrainedTokenizerFast, messages: Messages, tools: Sequence[Any]
) -> Example:
    """A conversation, in which the model learns what the assistant writes."""
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assistant, end = tokenizer.convert_tokens_to_ids([ASSISTANT, END])
    ids, labels, is_own = tokenizer(text)["input_ids"], [], False
    for token in ids:
        labels.append(token if is_own else -100)
        is_own = (is_own or token == assistant) and token != end
    return torch.tensor(ids), torch.tensor(labels)


def completed(tokenizer: PreTrainedTokenizerFast, prompt: str, answer: str) -> Example:
    """A prompt without a template and its answer, of which the answer is learned."""
    before, after = (tokenizer(text)["input_ids"] for text in (prompt, answer + END))
    return torch.tensor(before + after), torch.tensor([-100] * len(before) + after)


def fit(
    model: PreTrainedModel,
    batch_at: Callable[[float], Sequence[Example]],
    *,
    steps: int,
    learning_rate: float,
) -> None:
    """Train on what `batch_at` draws, whose argument goes from 0 to 1."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    print(f"{model.num_parameters():,} parameters, {model.config.vocab_size} tokens")
    started = time.monotonic()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, step / 200) * (1 - step / steps)
        loss = model(**padded(batch_at(step / steps), model.config.pad_token_id)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            seconds = time.monotonic() - started
            print(f"step {step:5d}  loss {loss.item():.4f}  {seconds:.0f} s", flush=True)


def padded(examples: Sequence[Example], pad_id: int) -> Mapping[str, Tensor]:
    """Inputs of a model, padded on the right."""
    pad = torch.nn.utils.rnn.pad_sequence
    ids, labels = zip(*examples, strict=True)
    return {
        "input_ids": pad(ids, batch_first=True, padding_value=pad_id),
        "attention_mask": pad([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=-100),
    }
