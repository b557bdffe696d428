"""The workloads of `against_trl.py`: prompts, lengths and random models."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIETY = 64
"""The number of different prompts of a workload."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """prompt, completion: tokens of each; rows: completions in a step; between: width of the MLP;
    ends: whether a completion ends at each token with probability 1/32; part: rows in one pass of
    TRL and of `model_alone`, all if 0; bf16: compute in bf16 with weights in float32."""

    prompt: int = 32
    completion: int = 128
    rows: int = 32
    vocabulary: int = 8192
    hidden: int = 384
    layers: int = 6
    heads: int = 6
    between: int = 1024
    ends: bool = False
    part: int = 0
    bf16: bool = False

    def prompts(self, count: int) -> list[str]:
        draw = random.Random(0)
        letters = "abcdefghijklmnopqrstuvwxyz"
        return ["".join(draw.choices(letters, k=self.prompt)) for _ in range(count)]

    def examples(self, count: int) -> list[dict[str, Any]]:
        """Rows of a data set."""
        return [{"prompt": prompt} for prompt in self.prompts(count)]


WORKS = {
    "A": Work(),
    "B": Work(prompt=384, completion=64),
    "C": Work(ends=True),
    "V": Work(rows=16, vocabulary=151_936, hidden=128, layers=2, heads=4, between=256),
    # Qwen2.5-0.5B's shape, for a GPU
    "L": Work(
        prompt=128,
        completion=512,
        rows=64,
        vocabulary=151_936,
        hidden=896,
        layers=24,
        heads=14,
        between=4864,
        part=16,
        bf16=True,
    ),
    "tiny L": Work(completion=16, hidden=64, layers=2, heads=2, between=64, part=16, bf16=True),
}
DEFAULT = {"cpu": ["A", "B", "C", "V"], "cuda": ["L"]}
"""The default workloads of each device."""


def make(work: Work, path: Path, device: str = "cpu") -> None:
    """Saves a random Qwen2 and a tokenizer in which every letter is a token."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=work.vocabulary,
        hidden_size=work.hidden,
        num_hidden_layers=work.layers,
        num_attention_heads=work.heads,
        num_key_value_heads=2,
        intermediate_size=work.between,
        max_position_embeddings=1024,
        tie_word_embeddings=not work.ends,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=1,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    if work.ends:
        make_end_token_likely(model)
    model.save_pretrained(path)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, "<pad>": 1} | {x: i for i, x in enumerate(letters, 2)}
    vocabulary |= {f"w{i}": i for i in range(len(vocabulary), work.vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>", padding_side="left"
    ).save_pretrained(path)


def make_end_token_likely(model: Any) -> None:
    """Gives the end token a probability of about 1/32.

    One dimension of the hidden states becomes constant, and the logit of the end token depends only
    on it.
    """
    import torch

    with torch.no_grad():
        head = model.lm_head.weight
        model.model.embed_tokens.weight[:, 0] = 5.0
        head[:, 0] = 0.0
        head[0] = 0.0
        ids = torch.randint(2, len(head), (8, 64), device=head.device)
        others = model(ids).logits[..., 2:].logsumexp(dim=-1).mean()
        constant = model.model(ids).last_hidden_state[..., 0].mean()
        head[0, 0] = (others - torch.tensor(31.0).log()) / constant
