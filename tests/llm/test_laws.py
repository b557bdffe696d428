"""The language model passes the checks of `groupwise.testing`."""

from pathlib import Path

import pytest

from groupwise import testing
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_testing.policy import gradients
from groupwise_testing.policy.case import Case

# Prompts of unequal length; at this temperature some completions end early.
ROWS = [{"prompt": "ab"}, {"prompt": "a longer prompt"}, {"prompt": "c"}]
SETTINGS = {
    "as it is": {},
    "of prompts that are not shared": {"share_prompt": False},
    "at another temperature": {"temperature": 1.7},
    "of adapters": {"lora": {"rank": 2}},
}


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma3"])
@pytest.mark.slow(after=1)
def test_architectures(make, architecture):
    policy = make(architecture)
    testing.check_policy(policy, ROWS, group_size=8, load=loaded(policy))
    testing.check_sampler(policy, policy, ROWS)


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings(make, settings):
    testing.check_policy(make(**SETTINGS[settings]), ROWS)


GRADIENTS = {
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
    "penalty": {"repetition_penalty": 1.2, "top_k": 20},
}
"""Settings that change how log-probs are computed, beside those of the tests above."""


@pytest.mark.parametrize("form", GRADIENTS)
def test_gradient(make, form):
    testing.hold(form, gradients.LAWS, Case(make(**GRADIENTS[form]), ROWS, 4, None))


def loaded(policy):
    """load(path) -> a policy of the saved model, with the same settings."""

    def load(path: Path) -> LanguageModel:
        settings = policy.config.model_copy(update={"model": str(path)})
        policy.tokenizer.save_pretrained(path)
        made = LanguageModel(Settings(**settings.model_dump(exclude_unset=True)))
        made.place("cpu")
        return made

    return load
