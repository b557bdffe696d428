"""`reward_model`: completions scored by tiny models for sequence classification."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from groupwise import testing
from groupwise.rewards import SampleErrors
from groupwise_verifiable.text.reward_model import RewardModel

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|end|>{% endfor %}"
SMALL = {
    "vocab_size": len(LETTERS) + 3,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def tokenizer(*, template: str | None, special: bool) -> PreTrainedTokenizerFast:
    """A token per byte. special: adds <|start|> before and <|end|> after each text."""
    vocabulary = {"<|pad|>": 0, "<|end|>": 1, "<|start|>": 2}
    vocabulary |= {letter: number + 3 for number, letter in enumerate(LETTERS)}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<|pad|>", "<|end|>", "<|start|>"])
    if special:
        raw.post_processor = processors.TemplateProcessing(
            single="<|start|> $A <|end|>", special_tokens=[("<|start|>", 2), ("<|end|>", 1)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>")
    fast.chat_template = template
    return fast


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that scores the last token, without a pad token, with a chat template."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(**SMALL, num_labels=1, pad_token_id=None)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer(template=TEMPLATE, special=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that scores the first token, which its tokenizer adds."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    BertForSequenceClassification(
        BertConfig(**SMALL, num_labels=1, pad_token_id=0)
    ).save_pretrained(folder)
    tokenizer(template=None, special=True).save_pretrained(folder)
    return folder


def reward(folder: Path | str, **settings: object) -> RewardModel:
    options = {"model": str(folder), "device": "cpu", **settings}
    return RewardModel(RewardModel.Config.model_validate(options))


def alone(folder: Path, text: str, **settings: Any) -> float:
    """The model's output for one text in its own batch, without padding."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", **settings)["input_ids"]
    with torch.no_grad():
        return model(input_ids=ids).logits.item()


def same(rounding: Any, scored: Any, prompts: Any, completions: Any, *values: Any) -> None:
    """The values are those of the reward, but for rounding."""
    rounding.same(lambda: torch.tensor(scored(prompts, completions)), *map(torch.tensor, values))


PROMPTS = ["Say yes. ", "Say something long. ", "? "]
COMPLETIONS = ["yes", "all of it, and then some more", "no"]


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_scores_do_not_depend_on_the_batch(
    kind: str, request: pytest.FixtureRequest, rounding: Any
) -> None:
    folder: Path = request.getfixturevalue(kind)
    expected = [alone(folder, p + c) for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    assert len({round(value, 4) for value in expected}) == 3
    results = [reward(folder, batch=batch)(PROMPTS, COMPLETIONS) for batch in (1, 2, 16)]
    same(rounding, reward(folder), PROMPTS, COMPLETIONS, expected, *results)
    rounded = reward(folder, precision="bf16")(PROMPTS, COMPLETIONS)
    assert rounded == pytest.approx(expected, abs=0.2)
    assert rounded != expected


def test_it_passes_check_reward(bert: Path) -> None:
    rows = [{"prompt": prompt} for prompt in PROMPTS]
    testing.check_reward(reward(bert), rows, COMPLETIONS)


def test_messages_are_rendered_by_the_template_and_scored_at_their_last_token(
    llama: Path, rounding: Any
) -> None:
    """As TRL does; the template ends with the end token, which must not count as padding."""
    prompts = [[{"role": "user", "content": text}] for text in PROMPTS]
    completions = [[{"role": "assistant", "content": text}] for text in COMPLETIONS]
    expected = [
        alone(llama, f"<user>{p}<|end|><assistant>{c}<|end|>", add_special_tokens=False)
        for p, c in zip(PROMPTS, COMPLETIONS, strict=True)
    ]
    scored = reward(llama)
    same(rounding, scored, prompts, completions, expected)
    same(rounding, scored, prompts, COMPLETIONS, expected)
    model, _ = scored.loaded()
    assert model.config.pad_token_id is None


def test_completions_longer_than_max_length_get_the_lowest_value_and_are_counted(
    llama: Path, rounding: Any
) -> None:
    texts = ["short", "x" * 95, "x" * 96]
    expected = [alone(llama, f"p{text}") for text in texts[:2]]
    logged: dict[str, float] = {}
    values = reward(llama)(["p"] * 3, texts, log_metric=logged.__setitem__)
    same(rounding, reward(llama), ["p"] * 3, texts, [*expected, min(expected)], values)
    assert logged == {"too_long": 1 / 3}


def test_a_prompt_longer_than_max_length_is_an_error_of_its_sample(
    llama: Path, rounding: Any
) -> None:
    prompts = ["p", "x" * 97]
    with pytest.raises(SampleErrors) as caught:
        reward(llama)(prompts, ["short", ""])
    expected = [alone(llama, "pshort")]
    same(rounding, reward(llama), ["p"], ["short"], expected, caught.value.values[:1])
    assert caught.value.values[1] is None
    assert caught.value.errors == {1: "97 tokens, but the model takes 96: see `max_length`"}


def test_if_all_texts_are_too_long_all_samples_are_errors(llama: Path) -> None:
    with pytest.raises(SampleErrors) as caught:
        reward(llama, max_length=3)(["p"] * 2, ["xxx", "xxxx"])
    assert list(caught.value.errors) == [0, 1]


def test_lone_surrogates_are_replaced(llama: Path) -> None:
    for prompts in (["p"], [[{"role": "user", "content": "p"}]]):
        assert reward(llama)(prompts, ["a\ud800"]) == reward(llama)(prompts, ["a\ufffd"])


def test_other_models_are_refused_in_one_line(llama: Path, tmp_path: Path) -> None:
    def saved(name: str, model: Any) -> Path:
        model.save_pretrained(tmp_path / name)
        tokenizer(template=None, special=False).save_pretrained(tmp_path / name)
        return tmp_path / name

    language = saved("language", LlamaForCausalLM(LlamaConfig(**SMALL, pad_token_id=None)))
    two = saved("two", LlamaForSequenceClassification(LlamaConfig(**SMALL, num_labels=2)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.json").write_text('{"model_type": "strange"}')
    for name, message in (
        (str(tmp_path / "empty"), "holds no model: no config.json"),
        (str(tmp_path / "strange"), "strange' cannot be loaded: "),
        (str(language), "expected a model for sequence classification, found LlamaForCausalLM"),
        (str(two), "has 2 outputs, expected one; for a classifier write"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            reward(name)
        assert "\n" not in str(caught.value)
    # Without entries in the config, or without local files, the error comes when it is loaded.
    config = json.loads((language / "config.json").read_text())
    incomplete = {**config, "architectures": None, "id2label": {"0": "LABEL_0"}}
    (language / "config.json").write_text(json.dumps(incomplete))
    for name, message in (
        (str(language), "is no reward model: it lacks 1 weights, 'score.weight' for example"),
        ("nobody/nothing", "`model`: 'nobody/nothing' cannot be loaded: "),
    ):
        model_reward = reward(name)
        with pytest.raises(ValueError, match=message) as caught:
            model_reward.load()
        assert "\n" not in str(caught.value)
    plain = saved("plain", LlamaForSequenceClassification(LlamaConfig(**SMALL, num_labels=1)))
    with pytest.raises(ValueError, match=r"prompts are messages, but .* has no chat template"):
        reward(plain)([[{"role": "user", "content": "?"}]], ["!"])


def pickled(folder: Path, copy: Path) -> Path:
    """A copy of a model whose weights are pickled."""
    shutil.copytree(folder, copy)
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    return copy


def test_pickled_weights_are_not_read(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no weights as safetensors.*save_pretrained"):
        reward(pickled(llama, tmp_path / "model")).load()


def test_a_file_that_is_cut_off_is_said_to_be(llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(
        ValueError, match=r"model\.safetensors is cut off: it has [\d,]+ of"
    ) as raised:
        reward(folder).load()
    assert "pickled" not in str(raised.value)


def test_it_is_loaded_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    real = AutoModelForSequenceClassification.from_pretrained

    def counted(name: str, **settings: Any) -> Any:
        loads.append(name)
        return real(name, **settings)

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", counted)
    scored = reward(llama)
    scored.load()
    assert scored(PROMPTS, COMPLETIONS) == scored(PROMPTS, COMPLETIONS)
    assert len(loads) == 1


def test_the_classifier_of_the_docs_works(tmp_path: Path, rounding: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python no-run\n(# my_classifier.py\n.*?)```", page, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SMALL, num_labels=3, pad_token_id=0))
    model.save_pretrained(tmp_path)
    words = tokenizer(template=None, special=True)
    words.pad_token = "<|pad|>"
    words.save_pretrained(tmp_path)
    values = []
    for label in range(3):
        classifier = namespace["Probability"](str(tmp_path), label)
        classifier.load()
        values.append(classifier(PROMPTS, COMPLETIONS))
    assert [sum(each) for each in zip(*values, strict=True)] == pytest.approx([1.0] * 3)
    single = classifier(PROMPTS[:1], COMPLETIONS[:1])
    same(rounding, classifier, PROMPTS[:1], COMPLETIONS[:1], single, values[2][:1])
