"""Forms: settings of language models, in which each option is set to another value somewhere."""

from tests.llm.conftest import make_tokenizer

FORMS = {
    "untied": {"architecture": "llama"},
    "checkpointing": {"gradient_checkpointing": True},
    "lora, checkpointing": {"lora": {"rank": 2}, "gradient_checkpointing": True},
    "lora, prompts that are not shared": {"lora": {"rank": 2}, "share_prompt": False},
    "bf16": {"precision": "bf16"},
    "bf16, head in float32, lora": {
        "precision": "bf16",
        "head_precision": "float32",
        "lora": {"rank": 2},
    },
    "quantised": {"architecture": "llama", "quantize": "4bit", "lora": {"rank": 2}},
    "penalty": {"repetition_penalty": 1.2, "top_k": 20, "temperature": 1.7},
    "texts": {
        "tokenizer": make_tokenizer(),
        "max_new_tokens": 11,
        "max_prompt_tokens": 6,
        "long_prompts": "cut",
        "chat_template": {"enable_thinking": False},
        "special_tokens_in_content": "escape",
        "stop": ["e"],
        "keep_special_tokens": False,
        "tool_calls": {"format": "hermes"},
        "evaluation": {"temperature": 0.5},
    },
    "passes": {
        "loading": {"attn_implementation": "eager"},
        "cache_tokens": 40,
        "cuda_graphs": False,
        "compile": False,
        "top_p": 0.9,
        "min_p": 0.02,
    },
}
"""Of the fixture `make`, by name."""
