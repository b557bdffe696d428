"""The memory that a judge in this process takes, and what it shares."""

import weakref

import torch
from PIL import Image
from tests.judge import tiny_judge
from tests.llm.vision import standins
from transformers import AutoModelForCausalLM

from groupwise_judge.generative import GenerativeJudge
from groupwise_judge.in_process.loading import weights


def test_the_memory_is_known_before_the_weights_are_loaded():
    count = AutoModelForCausalLM.from_pretrained(tiny_judge.folder()).num_parameters()
    for precision, width in (("float32", 4), ("bf16", 2)):
        model = str(tiny_judge.folder())
        config = {"model": model, "precision": precision}
        for device, offload in (("cpu", False), ("cuda", False), ("cuda", True)):
            settings = GenerativeJudge.Config(**config, device=device, offload=offload)
            reward = GenerativeJudge(settings)
            sizes = {f"judge {model}, {precision}, on {device}": width * count}
            assert reward.estimate() == (sizes if device == "cuda" else {})
            assert reward.estimate_cpu() == (sizes if device == "cpu" or offload else {})


def test_judges_on_one_device_share_a_model(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = str(tiny_judge.folder())
    usual, named = (GenerativeJudge.Config(model=model, device=each) for each in (None, "cpu"))
    loaded = weights(usual)
    assert weights(named) is loaded


def test_pictures_are_made_smaller_batch_by_batch(monkeypatch):
    """A ranking shows a picture in many questions: copies for all of them would fill the memory."""
    resize, made, most = Image.Image.resize, [], []

    def counted(self, *args, **kwargs):
        smaller = resize(self, *args, **kwargs)
        made.append(weakref.ref(smaller))
        most.append(sum(each() is not None for each in made))
        return smaller

    reward = GenerativeJudge(
        GenerativeJudge.Config(
            model=str(standins.folder("qwen2_5_vl")),
            question="{prompt}?",
            answers={"y": 1, "n": 0},
            max_pixels=300,
            batch=1,
        )
    )
    monkeypatch.setattr(Image.Image, "resize", counted)
    reward(["a"] * 8, [standins.picture(32, 32)] * 8)
    assert len(made) >= 8
    assert max(most) < 4
