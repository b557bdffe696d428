"""Runs of a vision-language policy: trained, resumed, saved; and what such a policy refuses."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from tests.llm.vision import reference, standins
from transformers import AutoModelForImageTextToText, AutoProcessor

import groupwise
from groupwise.kit.errors import UserError
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vision.families.qwen2_vl import Qwen2VL
from groupwise_llm.vision_language_model import VisionLanguageModel

COLORS = {"r": (255, 0, 0), "g": (0, 255, 0), "b": (0, 0, 255)}


def rows():
    return [
        {
            "prompt": [{"role": "user", "content": f"{number}?"}],
            "image": Image.new("RGB", (8 + 8 * (number % 3), 16), COLORS["rgb"[number % 3]]),
        }
        for number in range(4)
    ]


def length(completions, **_):
    return [float(len(own[0]["content"])) for own in completions]


def train(output, *, steps, resume=False, **policy):
    model = {"model": str(standins.folder("qwen2_5_vl")), "max_new_tokens": 3, **policy}
    return groupwise.train(
        policy={"name": "vision_language_model", **model},
        prompts=rows(),
        rewards=[length],
        train={"steps": steps, "groups_per_step": 2, "group_size": 3, "learning_rate": 1e-2},
        output=str(output),
        resume=resume,
        quiet=True,
    )


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("vision", ["frozen", "trained"])
def test_a_resumed_run_goes_on_as_one_that_was_not_stopped(tmp_path, vision):
    """The third step has pictures of the first two, which a resumed run has not seen."""
    whole = train(tmp_path / "whole", steps=4, vision=vision).policy
    train(tmp_path / "parts", steps=2, vision=vision)
    parts = train(tmp_path / "parts", steps=4, vision=vision, resume=True).policy
    for (name, own), other in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert own.equal(other), name
    begun = standins.make_model("qwen2_5_vl", whole.tokenizer)
    moved = [
        name
        for name, weight in begun.named_parameters()
        if not weight.equal(whole.model.get_parameter(name))
    ]
    assert any("language_model" in name for name in moved)
    assert any("visual" in name for name in moved) == (vision == "trained")


def test_generate_goes_on_as_the_policy_does(make, tmp_path):
    policy = make(max_new_tokens=8)
    ours = policy.sample(reference.rows(), group_size=1, seeds=range(4), purpose="greedy")
    policy.save_pretrained(tmp_path)
    processor = AutoProcessor.from_pretrained(tmp_path)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    for number, row in enumerate(reference.rows()):
        messages = row["prompt"]
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
        given = processor(text=[text], images=row["images"] or None, return_tensors="pt")
        excluded = sorted(policy.causal.family.excluded)
        ids = model.generate(**given, max_new_tokens=8, do_sample=False, suppress_tokens=excluded)
        tokens = ours.facts["completion_ids"][number]
        assert ids[0, given["input_ids"].shape[1] :].tolist()[: len(tokens)] == list(tokens)


def test_tokens_of_pictures_are_never_drawn(make):
    """Log-probs are those of the distribution that is drawn from."""
    policy = make(max_new_tokens=2)
    family, head = policy.causal.family, policy.model.get_output_embeddings()
    with torch.no_grad():  # the last hidden state is near that of any token
        head.weight[sorted(family.excluded)] *= 1e3
    rollouts = policy.sample(reference.rows(), group_size=4, seeds=range(16))
    drawn = {token for own in rollouts.facts["completion_ids"] for token in own}
    assert not drawn & family.excluded
    assert (rollouts.sampler_log_probs > -30).all()


# ---- refused


def test_prompts_are_not_cut_within_a_picture(make):
    with pytest.raises(ValidationError, match="long_prompts: cut would cut pictures"):
        make(long_prompts="cut")
    policy = make(max_prompt_tokens=60)
    with pytest.raises(UserError, match=r"a prompt of 6\d tokens is longer than"):
        policy.check_prompts(reference.rows())
    policy = make(max_prompt_tokens=60, long_prompts="skip")
    assert [policy.skips(row) for row in reference.rows()] == [False, False, True, True]


def test_a_model_without_a_processor_is_refused(tmp_path):
    folder = shutil.copytree(standins.folder("qwen2_5_vl"), tmp_path / "model")
    (folder / "processor_config.json").unlink()
    with pytest.raises(UserError, match=r"policy\.model: .* processor of pictures"):
        train(tmp_path / "run", steps=1, model=str(folder))


def test_a_model_of_no_family_is_refused(tmp_path):
    folder = shutil.copytree(standins.folder("qwen2_5_vl"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "aria"}))
    with pytest.raises(UserError, match=r"policy\.model: no family .* 'aria'; registered are"):
        train(tmp_path / "run", steps=1, model=str(folder))


def test_a_family_that_reads_pictures_otherwise_than_transformers_is_refused(make, monkeypatch):
    advances = Qwen2VL.picture

    def flat(family, image, **limits):
        picture = advances(family, image, **limits)
        return replace(picture, offsets=torch.zeros_like(picture.offsets))

    monkeypatch.setattr(Qwen2VL, "picture", flat)
    with pytest.raises(
        UserError, match=r"does not read pictures as its family Qwen2VL has it: log"
    ):
        make()


@pytest.mark.parametrize(
    ("learner", "teacher", "changes", "message"),
    [
        (VisionLanguageModel, LanguageModel, {}, "one of policy and teacher reads pictures"),
        (LanguageModel, VisionLanguageModel, {}, "one of policy and teacher reads pictures"),
        (
            VisionLanguageModel,
            VisionLanguageModel,
            {"max_pixels": 400},
            "prepares them otherwise .* max_pixels alike",
        ),
        (VisionLanguageModel, VisionLanguageModel, {"model": "qwen3_vl"}, "same family"),
    ],
)
def test_a_teacher_reads_the_pictures_of_the_policy(learner, teacher, changes, message):
    def settings(kind, model="qwen2_5_vl", **options):
        return kind.Config(model=str(standins.folder(model)), **options)

    learner.check_teacher(settings(learner), learner, settings(learner))
    with pytest.raises(UserError, match=message):
        learner.check_teacher(settings(learner), teacher, settings(teacher, **changes))


def test_prompts_are_measured_without_reading_pixels(make, tmp_path):
    policy = make(max_prompt_tokens=200)
    rows = [{**row, "images": [*row["images"]]} for row in reference.rows()]
    lengths = [len(own.prompt_ids) for own in policy.encode(rows)]
    for row in rows:
        for number, image in enumerate(row["images"]):
            path = tmp_path / f"{image.width} {image.height}.png"
            image.save(path)
            path.write_bytes(path.read_bytes()[:80])
            row["images"][number] = path
    assert policy.prompts.lengths(rows) == lengths
    with pytest.raises(UserError, match="cannot be opened"):
        policy.encode(rows)
