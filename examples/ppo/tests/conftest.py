from pathlib import Path
from typing import Any

import pytest
import torch
from groupwise_ppo.policy import LanguageModelWithCritic
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END = "<|endoftext|>"
LETTERS = "abcdefghĠ"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 with a token for each letter."""
    folder = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=len(LETTERS) + 1,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=None,
            initializer_range=0.2,
            tie_word_embeddings=False,
        )
        Qwen2ForCausalLM(config).save_pretrained(folder)
    vocabulary = {END: 0, **{letter: i for i, letter in enumerate(LETTERS, 1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    return folder


@pytest.fixture
def policy(model: Path) -> LanguageModelWithCritic:
    """A placed policy whose critic's head is random: zeros would hide that it is not used."""
    policy = LanguageModelWithCritic(
        LanguageModelWithCritic.Config(model=str(model), max_new_tokens=8)
    )
    policy.place("cpu")
    assert policy.critic is not None
    with torch.no_grad():
        policy.critic.head.weight.copy_(torch.linspace(-1, 1, 16).unsqueeze(0))
    return policy


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [{"prompt": text} for text in ("abc", "a bag faced", "h", "bad cab")]
