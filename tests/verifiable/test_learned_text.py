"""`learned_text`: a tiny sequence classification model, trained on a verifier's labels."""

from pathlib import Path

import pytest
import torch
from tests.verifiable.test_reward_model import SMALL, TEMPLATE, pickled, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from groupwise import Rollouts, testing
from groupwise.rewards import Scores
from groupwise_verifiable.text.learned import LearnedText
from groupwise_verifiable.text.reward_model import RewardModel


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model without a head for sequence classification."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    config = LlamaConfig(**SMALL | {"initializer_range": 0.2}, pad_token_id=0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(template=TEMPLATE, special=False).save_pretrained(folder)
    return folder


def learned(folder: Path, **settings: object) -> LearnedText:
    options = {"model": str(folder), "labels": "verifier", "device": "cpu", **settings}
    return LearnedText(LearnedText.Config.model_validate(options))


def batch(texts: list[str]) -> Rollouts:
    return Rollouts(
        prompts=[{"prompt": "say: "}] * len(texts),
        completions=texts,
        groups=torch.arange(len(texts)),
        mask=torch.ones(len(texts), 1, dtype=torch.bool),
        truncated=torch.zeros(len(texts), dtype=torch.bool),
    )


def labelled(labels: list[float]) -> Scores:
    values = torch.tensor(labels, dtype=torch.float64).unsqueeze(1)
    failed = torch.zeros(len(labels), dtype=torch.bool)
    return Scores(names=("verifier",), weights=(1.0,), values=values, failed=failed)


def texts(count: int, seed: int) -> tuple[list[str], list[float]]:
    """Random words that end in a (label 1) or b (label 0)."""
    draws = torch.Generator().manual_seed(seed)
    ends = torch.randint(2, (count,), generator=draws).tolist()
    starts = torch.randint(26, (count, 3), generator=draws).tolist()
    words = [
        "".join(chr(97 + n) for n in start) + "ab"[end]
        for start, end in zip(starts, ends, strict=True)
    ]
    return words, [1.0 - end for end in ends]


def test_pickled_weights_are_not_read(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no weights as safetensors"):
        learned(pickled(base, tmp_path / "model")).load()


def test_it_learns_the_labels_of_the_verifier(base: Path) -> None:
    reward = learned(base, learning_rate=0.003, examples=8)
    assert reward(["say: "] * 2, ["aaaa", "bb"]) == [0.5, 0.5]
    for seed in range(4):
        words, labels = texts(32, seed)
        metrics = reward.refresh(batch(words), labelled(labels))
    assert metrics["agreement"] > 0.95
    words, labels = texts(16, 9)
    values = reward(["say: "] * 16, words)
    assert [float(value > 0.5) for value in values if value is not None] == labels


def test_training_continues_exactly_from_a_state(base: Path) -> None:
    one, other = learned(base), learned(base)
    words, labels = texts(8, 0)
    one.refresh(batch(words), labelled(labels))
    other.load_state_dict(one.state_dict())
    for each in (one, other):
        each.refresh(batch(words), labelled(labels))
    assert one(["x"] * 8, words) == other(["x"] * 8, words)
    assert one.rounds == other.rounds == 2


def test_texts_longer_than_max_length_are_not_learned_from(base: Path) -> None:
    reward = learned(base, max_length=12)
    metrics = reward.refresh(batch(["abc", "b" * 20, "a"]), labelled([1.0, 0.0, 0.0]))
    assert (metrics["unlabelled"], metrics["labels"]) == (1, 0.5)


def test_a_reward_model_is_the_starting_point(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(**SMALL, num_labels=1, pad_token_id=0))
    model.save_pretrained(tmp_path)
    tokenizer(template=TEMPLATE, special=False).save_pretrained(tmp_path)
    frozen = RewardModel(RewardModel.Config(model=str(tmp_path), device="cpu"))
    prompts, words = ["say: "] * 3, ["aab", "ccc", "d"]
    logits = torch.tensor(frozen(prompts, words))
    torch.testing.assert_close(torch.tensor(learned(tmp_path)(prompts, words)), logits.sigmoid())


def test_a_model_without_a_body_is_refused(base: Path, tmp_path: Path) -> None:
    config = LlamaConfig(**SMALL | {"num_hidden_layers": 1}, pad_token_id=0)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    LlamaConfig(**SMALL, pad_token_id=0).save_pretrained(tmp_path)
    tokenizer(template=TEMPLATE, special=False).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is no reward model: it lacks 9 weights, 'model\.layers"):
        learned(tmp_path).load()


def test_laws(base: Path) -> None:
    reward = learned(base)
    words, labels = texts(6, 0)
    reward.refresh(batch(words), labelled(labels))
    rows = [{"prompt": text} for text in ("one", "two", "three")]
    testing.check_reward(reward, rows, words, group_size=2)
