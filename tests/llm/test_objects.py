"""A model of transformers that is passed as an object is trained in place, as from its files."""

import pytest
import torch
from tests import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import groupwise
from groupwise.kit.errors import UserError
from groupwise.storage.run_info import check_objects
from groupwise_llm.settings import Settings


def longest(completions, **_):
    return [float(len(text)) for text in completions]


def train(folder, policy, **options):
    return groupwise.train(
        policy=policy,
        prompts=[{"prompt": f"{n} + 1 ="} for n in range(6)],
        rewards=[longest],
        train={"steps": 2, "groups_per_step": 2, "group_size": 2, "learning_rate": 1e-2},
        evaluation={"prompts": 0},
        output=folder,
        quiet=True,
        **{"policy.max_new_tokens": 4, **options},
    )


@pytest.fixture
def model():
    return AutoModelForCausalLM.from_pretrained(tiny_model.folder())


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny_model.folder())


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["full", "lora"])
def test_the_run_is_that_of_its_folder(tmp_path, model, tokenizer, lora):
    named = {"name": "language_model", "model": str(tiny_model.folder())}
    options = {} if lora is None else {"policy.lora": lora}
    read = train(tmp_path / "read", named, **options)
    given = train(tmp_path / "given", model, tokenizer=tokenizer, **options)
    assert read.metrics["reward"] == given.metrics["reward"]
    ours, theirs = (run.policy.model.state_dict() for run in (read, given))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    inner = given.policy.model if lora is None else given.policy.model.get_base_model()
    assert inner is model
    config = (tmp_path / "given" / "config.yaml").read_text()
    assert "model: <Qwen2ForCausalLM>" in config
    if lora is not None:
        with pytest.raises(UserError, match="has adapters already, those of an earlier run"):
            train(tmp_path / "again", model)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks it
def test_what_needs_files_says_so(tmp_path, model, tokenizer):
    train(tmp_path / "run", model)  # with the tokenizer of the folder that the model is from
    with pytest.raises(UserError, match=r"model is an object cannot be resumed, and .*/model"):
        check_objects(tmp_path / "run", {})
    with pytest.raises(UserError, match=r"policy\.model: a run whose model is an object cannot be"):
        train(tmp_path / "run", model, resume=True)
    with pytest.raises(UserError, match=r"policy\.model: a model that is an object is whole on"):
        train(tmp_path / "sharded", model, **{"train.shard": True})
    with pytest.raises(UserError, match=r"`loading` and `quantize` say how a model is read"):
        train(tmp_path / "loading", {"name": model, "loading": {"revision": "main"}})
    made = type(model)(model.config)
    made.name_or_path = ""
    with pytest.raises(UserError, match="its tokenizer is not known; pass it, too"):
        train(tmp_path / "unknown", made)
    with pytest.raises(UserError, match="expected a model of transformers, its folder or its hub"):
        train(tmp_path / "other", {"name": "language_model", "model": torch.nn.Linear(1, 1)})
    assert Settings(model=model).model == str(tiny_model.folder())
