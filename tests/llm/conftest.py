"""Tiny models of real architectures with random weights, and a tokenizer, built from configs."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from groupwise_llm.policy import LanguageModel
from groupwise_llm.probing import probes
from groupwise_llm.settings import Settings

END = "<|end|>"
TURN = "<|turn|>"
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
SIZE = len(LETTERS) + 2
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '<|turn|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
FORGETFUL = TEMPLATE.replace("m['content']", "m['content'].split('</think>')[-1]")
"""Drops the thinking of earlier turns."""
COMMON = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
    # Large enough that tokens differ in probability.
    "initializer_range": 0.2,
}
GATED = {**COMMON, "intermediate_size": 64, "num_key_value_heads": 2}
GEMMA = {**GATED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}
CONFIGS = {
    "qwen2": lambda: Qwen2Config(**GATED, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**GATED, head_dim=8, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**GATED, tie_word_embeddings=False),
    "gpt2": lambda: GPT2Config(
        vocab_size=SIZE,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        bos_token_id=None,
        eos_token_id=0,
        initializer_range=0.2,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**COMMON, intermediate_size=64, tie_word_embeddings=False),
    "gemma2": lambda: Gemma2Config(**GEMMA, final_logit_softcapping=3.0),
    "mixtral": lambda: MixtralConfig(**GATED, num_local_experts=4, num_experts_per_tok=2),
    "gemma3": lambda: Gemma3TextConfig(**GEMMA, sliding_window_pattern=2),
}


def make_tokenizer(template=TEMPLATE, pad=None):
    """A token per byte; 0 ends a text, 1 ends a turn."""
    vocabulary = {END: 0, TURN: 1} | {letter: n + 2 for n, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, TURN])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=pad)
    fast.chat_template = template
    return fast


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """saved(architecture, **configuration) -> a folder that from_pretrained reads."""
    folders = {}

    def save(architecture="qwen2", template=TEMPLATE, pad=None, **changes):
        key = (architecture, template, pad, repr(sorted(changes.items())))
        if key not in folders:
            folder = tmp_path_factory.mktemp(architecture)
            config = CONFIGS[architecture]()
            config.update(changes)
            with torch.random.fork_rng():
                torch.manual_seed(7)
                model = AutoModelForCausalLM.from_config(config)
                # Biases of zero would hide code that forgets a bias.
                for name, parameter in model.named_parameters():
                    if name.endswith("bias"):
                        torch.nn.init.normal_(parameter, std=0.1)
            model.save_pretrained(folder)
            make_tokenizer(template, pad).save_pretrained(folder)
            folders[key] = folder
        return folders[key]

    return save


def placed(policy, device="cpu"):
    policy.place(device)
    return policy


UNPROBED = {
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "evaluation", "stop"),
    *("tokenizer", "chat_template", "tool_calls", "long_prompts", "cache_tokens"),
    *("keep_special_tokens", "special_tokens_in_content"),
}
"""Settings that change nothing of what probing sees."""


@pytest.fixture
def placed_once(request):
    """placed_once(policy, weights, device) -> the policy, placed on the device.

    Of the same weights, which are named, and settings one is probed only once in this process: most
    tests are about what a policy does then.
    """
    # A test that replaces functions may replace one that is probed.
    abilities = {} if "monkeypatch" in request.fixturenames else _abilities

    def place(policy, weights, device="cpu"):
        config = policy.config
        without = UNPROBED | ({"max_new_tokens"} if config.max_prompt_tokens is None else set())
        key = repr((weights, type(policy), device, config.model_dump(exclude={"model"} | without)))
        if key not in abilities:
            abilities[key] = placed(policy, device).ability
        else:
            with patch.object(probes, "ability", lambda *_, **__: abilities[key]):
                policy.place(device)
        return policy

    return place


_abilities = {}


@pytest.fixture
def make(placed_once, saved):
    """make(architecture, model={...}, **settings) -> a new policy."""

    def policy(architecture="qwen2", model=None, device="cpu", **settings):
        folder = saved(architecture, **(model or {}))
        torch.manual_seed(0)
        settings = {"max_new_tokens": 12, **settings}
        made = LanguageModel(Settings(model=str(folder), **settings))
        weights = {k: v for k, v in (model or {}).items() if k not in ("template", "pad")}
        return placed_once(made, (architecture, sorted(weights.items())), device)

    return policy


@pytest.fixture
def batch_shapes(monkeypatch):
    """batch_shapes(policy) -> a list that grows by the shape of each batch of tokens."""

    def watch(policy):
        shapes, original = [], policy.causal._layers

        def layers(ids, **options):
            shapes.append(tuple(ids.shape))
            return original(ids, **options)

        monkeypatch.setattr(policy.causal, "_layers", layers)
        return shapes

    return watch


@pytest.fixture
def make_of(placed_once, tmp_path):
    """make_of(configuration, **settings) -> a policy of a model with random weights."""

    def policy(config, *, tokenizer=None, **settings):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
        (tokenizer or make_tokenizer()).save_pretrained(tmp_path / "model")
        settings = {"max_new_tokens": 12, **settings}
        made = LanguageModel(Settings(model=str(tmp_path / "model"), **settings))
        return placed_once(made, config.to_json_string())

    return policy


@pytest.fixture
def allow():
    """allow(policy, training=..., **decoding) overrides what the trial run has shown."""

    def change(policy, training=None, **decoding):
        ability = policy.ability
        policy._ability = replace(
            ability,
            decoding=replace(ability.decoding, **decoding),
            training=training or ability.training,
        )

    return change


@pytest.fixture
def transformers_log_probs():
    """transformers_log_probs(policy, rollouts) -> [B, T] by transformers' forward, row by row."""

    def log_probs(policy, rollouts):
        result = torch.zeros(rollouts.mask.shape)
        for row in range(len(rollouts)):
            prompt = rollouts.trajectory["prompt_ids"][row].to(policy.device)
            tokens = rollouts.trajectory["attention"][row]
            completion = rollouts.trajectory["completion_ids"][row, tokens].to(policy.device)
            ids = torch.cat([prompt, completion]).unsqueeze(0)
            logits = (
                policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            )
            scores = (logits / policy.config.temperature).log_softmax(-1)
            result[row, tokens] = scores.gather(1, completion.unsqueeze(1)).squeeze(1).cpu()
        return result * rollouts.mask.cpu()

    return log_probs


ROWS = [{"prompt": "a longer prompt: 12+34="}, {"prompt": "Hi"}, {"prompt": "7-5"}]


@pytest.fixture
def rows():
    return [dict(row) for row in ROWS]
