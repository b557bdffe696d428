"""`learned_image`: a head on the features of a tiny CLIP, trained on a verifier's labels."""

import pytest
import torch

from groupwise import Rollouts
from groupwise.rewards import Scores
from groupwise_clip.learned import LearnedImage


def learned(folder, **settings):
    options = {"model": str(folder), "labels": "verifier", "device": "cpu", **settings}
    return LearnedImage(LearnedImage.Config.model_validate(options))


def red_and_blue(count, seed):
    """Plain pictures with a little noise, and their labels: 1 for red, 0 for blue."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=draws)
    pictures = 0.1 * torch.rand(count, 3, 32, 32, generator=draws)
    for picture, label in zip(pictures, labels, strict=True):
        picture[0 if label else 2] += 0.8
    return list(pictures), labels.double()


def batch(images, texts):
    count = len(images)
    return Rollouts(
        prompts=[{"prompt": text} for text in texts],
        completions=[None] * count,
        groups=torch.arange(count),
        mask=torch.ones(count, 1, dtype=torch.bool),
        truncated=torch.zeros(count, dtype=torch.bool),
        facts={"pixels": images},
    )


def labelled(labels):
    values = labels.unsqueeze(1)
    failed = torch.zeros(len(labels), dtype=torch.bool)
    return Scores(names=("verifier",), weights=(1.0,), values=values, failed=failed)


@pytest.mark.parametrize("prompt", [True, False])
def test_it_learns_the_labels_of_the_verifier(folder, prompt):
    reward = learned(folder, prompt=prompt, learning_rate=0.01, examples=8, epochs=2)
    for seed in range(3):
        images, labels = red_and_blue(32, seed)
        texts = ["a red square"] * 32
        if prompt and seed == 0:
            assert set(reward(texts, [None] * 32, pixels=images)) == {0.5}
        metrics = reward.refresh(batch(images, texts), labelled(labels))
    assert metrics["agreement"] > 0.95
    values = torch.tensor(reward(texts, [None] * 32, pixels=images))
    assert torch.equal((values > 0.5).double(), labels)


def test_images_without_a_text_are_neither_scored_nor_learned_from(folder):
    images, labels = red_and_blue(4, 0)
    reward = learned(folder, text="caption")
    columns = {"pixels": images, "caption": ["red", None, "blue", " "]}
    assert [v is None for v in reward(["x"] * 4, [None] * 4, **columns)] == [0, 1, 0, 1]
    rows = [{"prompt": "x", "caption": text} for text in columns["caption"]]
    rollouts = batch(images, "xxxx")
    rollouts.prompts[:] = rows
    assert reward.refresh(rollouts, labelled(labels))["unlabelled"] == 2


def test_its_state_holds_the_head_and_not_the_clip(folder):
    reward, other = learned(folder, hidden=5), learned(folder, hidden=5)
    images, labels = red_and_blue(8, 0)
    reward.refresh(batch(images, ["red"] * 8), labelled(labels))
    state = reward.state_dict()
    assert {tuple(weight.shape) for weight in state["network"].values()} == {
        (5, 72),
        (5,),
        (1, 5),
        (1,),
    }
    other.load_state_dict(state)
    for each in (reward, other):
        each.refresh(batch(*[images, ["red"] * 8]), labelled(labels))
    for one, two in zip(reward.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(one, two)
