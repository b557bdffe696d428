"""A judge with random weights: a causal model with a token per byte, and a few words."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ("yes", "Yes", " No", "no", "A", "B")
"""Tokens besides the bytes, in this spelling."""
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens([word for word in WORDS if len(word) > 1])
    raw.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=SPECIAL[0], eos_token=SPECIAL[2])
    fast.chat_template = template
    return fast


@cache
def folder(template: str | None = TEMPLATE, context: int = 2048) -> Path:
    """The saved model, one per process; context: the longest text in tokens."""
    path = Path(tempfile.mkdtemp(prefix="judge"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    words = tokenizer(template)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(path)
    words.save_pretrained(path)
    return path
