"""The language model passes the checks of `groupwise.testing`."""

from pathlib import Path

import pytest
from tests.llm.forms import FORMS

from groupwise import testing
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_testing.policy import gradients, outputs
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
@pytest.mark.slow(after=1)
def test_settings(make, settings):
    testing.check_policy(make(**SETTINGS[settings]), ROWS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow(after=1)
def test_form(make, form):
    case = Case(make(**FORMS[form]), ROWS, 4, None)
    testing.hold(form, (outputs.ratio, *gradients.LAWS), case)


def test_every_option_is_in_a_form():
    usual = {
        name: field.get_default(call_default_factory=True)
        for name, field in Settings.model_fields.items()
        if name != "model"
    }
    tried = {name for form in FORMS.values() for name in form if form[name] != usual.get(name)}
    missing = usual.keys() - tried
    assert not missing, (
        f"no form sets {', '.join(sorted(missing))}, so that the laws of the ratio and of the "
        f"gradient never see it; add one to tests/llm/forms.py, with another value than the default"
    )


def loaded(policy):
    """load(path) -> a policy of the saved model, with the same settings."""

    def load(path: Path) -> LanguageModel:
        settings = policy.config.model_copy(update={"model": str(path)})
        policy.tokenizer.save_pretrained(path)
        made = LanguageModel(Settings(**settings.model_dump(exclude_unset=True)))
        made.place("cpu")
        return made

    return load
