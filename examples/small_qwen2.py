"""A Qwen2 of less than a million parameters, and pairs of texts to supervise it on.

`make_base.py` of `arithmetic`, `chain` and `calculator` train it, that of `nim` a smaller one.
"""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


def make_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    positions: int,
    width: int = 128,
    layers: int = 4,
    spread: float = 0.02,
) -> Qwen2ForCausalLM:
    """A model with random weights of the std `spread`; positions: most tokens of prompt and answer
    together; width: of its hidden states."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        initializer_range=spread,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def batch(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> dict[str, Tensor]:
    """Right-padded ids of prompts and answers, with labels for the answers only."""
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    answers = tokenizer([answer for _, answer in pairs])["input_ids"]
    both = list(zip(prompts, answers, strict=True))
    pad = torch.nn.utils.rnn.pad_sequence
    ids = [torch.tensor([*prompt, *answer]) for prompt, answer in both]
    labels = [torch.tensor([*[-100] * len(prompt), *answer]) for prompt, answer in both]
    return {
        "input_ids": pad(ids, batch_first=True, padding_value=tokenizer.pad_token_id),
        "attention_mask": pad([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=-100),
    }
