"""Adapters that read pictures: their rows, sizes and cards. Their laws: test_models.py."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from groupwise import testing
from groupwise.kit.errors import UserError
from groupwise_flow.adapters.flux_kontext import FluxKontextAdapter
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.preflight import reads_pictures


def picture(seed=0, size=(24, 16)):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def png(image):
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


@pytest.fixture
def policy(lab):
    return lab.policy("flux_kontext", steps=3, evaluation_steps=2)


def test_encodings_tell_pictures_apart_and_know_the_same_in_other_forms(policy, tmp_path):
    one, other = picture(0), picture(1)
    (tmp_path / "one.png").write_bytes(png(one))
    calls = []
    encode = policy.adapter.encode
    policy.adapter.encode = lambda rows: calls.append(len(rows)) or encode(rows)
    asked = [{"type": "image"}, {"type": "text", "text": "x"}]
    rows = [
        {"prompt": "x", "image": one},
        {"prompt": "x", "images": [other]},
        {"prompt": "x", "image": png(one)},
        {"prompt": "x", "image": {"bytes": png(one), "path": "gone.png"}},
        {"prompt": "x", "image": str(tmp_path / "one.png")},
        {"prompt": [{"role": "user", "content": asked}], "image": png(one)},
    ]
    latents = policy.guided.conditions(rows)["references"]
    assert len(calls) == 3  # opened, the other one, and as bytes in whatever place
    assert not torch.equal(latents[0], latents[1])
    for number in (2, 3, 4, 5):
        assert torch.equal(latents[0], latents[number])


def test_a_source_is_part_of_what_is_asked(lab):
    """Else the same instruction for another picture would be held out with it."""
    reads = [
        FlowPolicy.reads_attached(lab.settings(name))
        for name in ("flux_kontext", "flux2_klein edit", "flux2_klein", "sd3")
    ]
    assert reads == [True, True, False, False]
    assert not reads_pictures(lab.settings("sd3", model="no/such-model"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x"}, r"found 0 pictures .* expected 1"),
        ({"prompt": "x", "images": [picture(), picture()]}, r"found 2 pictures .*references: 2"),
        ({"prompt": "x", "image": "gone.png"}, "there is no file 'gone.png'"),
        ({"prompt": "x", "image": b"no picture"}, "is not a picture"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "expected a PIL image"),
    ],
)
def test_rows_without_their_picture_are_refused_before_the_first_step(policy, row, message):
    with pytest.raises(UserError, match=message):
        policy.check_prompts([row])


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_a_picture_of_another_shape_is_cropped_or_padded(lab, fit):
    adapter = {"name": "FluxKontextPipeline", "fit": fit}
    adapter = lab.policy("flux_kontext", adapter=adapter, steps=3).adapter
    square = Image.new("RGB", (64, 64), "red")
    square.paste("blue", (0, 0, 64, 4))  # beyond the middle of 24 x 16
    (fitted,) = adapter.pictures(adapter.columns({"prompt": "x", "image": square}))
    pixels = np.asarray(fitted)
    assert pixels.shape == (16, 24, 3)
    assert (pixels[:, 0] == (255 if fit == "pad" else (255, 0, 0))).all()
    assert (pixels[8, 12] == (255, 0, 0)).all()
    assert (pixels[0, 12] == (255, 0, 0)).all() == (fit == "crop")


def test_the_unconditional_pass_reads_the_same_picture(lab):
    adapter = lab.policy("flux2_klein edit", steps=3).adapter
    own = {"prompt": [{"role": "user", "content": "x"}], "images": [picture(0), picture(1)]}
    row = adapter.unconditional_row(own, "")
    both = adapter.encode([adapter.columns(own)]), adapter.encode([adapter.columns(row)])
    assert torch.equal(both[0]["references"], both[1]["references"])
    assert not torch.equal(both[0]["embeds"], both[1]["embeds"])


def test_the_code_of_the_card_edits_a_picture(lab, tmp_path, monkeypatch):
    policy = lab.policy("flux_kontext", lora={"rank": 2}, evaluation_steps=2)
    policy.save_pretrained(tmp_path / "model")
    assert policy.card["pipeline_tag"] == "image-to-image"
    picture(size=(70, 30)).save(tmp_path / "source1.png")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(policy.card["usage"].replace("{path}", str(tmp_path / "model")), names)
    assert names["image"].size == (24, 16)


def test_the_law_of_sources_names_an_adapter_that_ignores_them(lab, folders):
    class Blind(FluxKontextAdapter):
        def encode(self, rows):
            encoded = dict(super().encode(rows))
            return {**encoded, "references": torch.zeros_like(encoded["references"])}

    pipeline = lab.policy("flux_kontext").adapter.pipeline
    rows = [{"prompt": text, "image": picture(n)} for n, text in enumerate(("a cat", "x"))]
    with pytest.raises(AssertionError, match="another source changes the velocity"):
        testing.check_adapter(Blind, pipeline, rows=rows, height=16, width=24, prompt_tokens=24)


@pytest.mark.slow
def test_encodings_of_the_unconditional_pass_are_one_a_row(lab):
    """So a cache for four rows holds eight, and of a model that only draws five."""
    counts = {"rollouts": 4, "prompts": 4, "facts": frozenset(), "references": 0}
    sizes = [
        FlowPolicy.estimate_cpu(lab.settings(name, guidance=scale), **counts)["encoded prompts"]
        for name in ("flux2_klein edit", "flux2_klein")
        for scale in (1.0, 3.0)
    ]
    assert [sizes[1] / sizes[0], sizes[3] / sizes[2]] == [8 / 5, 1.0]
