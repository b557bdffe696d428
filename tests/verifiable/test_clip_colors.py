"""Colours of detected objects, named by a tiny CLIP with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from groupwise_verifiable.images.clip_colors import COLORS, ClipColors
from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.detection import Box, Detection
from groupwise_verifiable.images.pixels import Pixels

MODEL = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CLIP in open_clip's format, whose features differ from image to image."""
    folder = tmp_path_factory.mktemp("clip")
    config = {"model_cfg": MODEL, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = open_clip.model.CLIP(**MODEL)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return f"local-dir:{folder}"


@pytest.fixture(scope="module")
def image() -> Pixels:
    """An image [60, 80, 3] of six areas, each of one colour."""
    areas = np.random.default_rng(0).random((2, 3, 3), np.float32)
    return areas.repeat(30, axis=0).repeat(27, axis=1)[:, :80]


def cup(box: Box, label: str = "cup") -> Detection:
    return Detection(label, None, box, 0.9)


BOXES = [(0.0, 0.0, 20.0, 20.0), (20.2, 10.7, 60.0, 55.0), (50.0, 0.0, 95.0, 30.0)]


def test_the_names_are_those_of_the_nearest_texts(tiny: str, image: Pixels) -> None:
    """GenEval's classifier: crops against the mean features of three phrases per colour."""
    model, _, preprocess = open_clip.create_model_and_transforms(tiny)
    tokenizer = open_clip.get_tokenizer(tiny)
    full_image = Image.fromarray(np.round(image * 255).astype(np.uint8))
    edges = [(0, 0, 20, 20), (20, 11, 60, 55), (50, 0, 80, 30)]  # within the image
    names = []
    with torch.no_grad():
        for edge, label in zip(edges, ("cup", "dog", "cup"), strict=True):
            crop = model.eval().encode_image(
                preprocess(full_image.crop(edge))[None], normalize=True
            )
            texts = []
            for color in COLORS:
                phrases = [
                    f"a photo of a {color} {label}",
                    f"a photo of a {color}-colored {label}",
                    f"a photo of a {color} object",
                ]
                mean = model.encode_text(tokenizer(phrases), normalize=True).mean(0)
                texts.append(mean / mean.norm())
            names.append(COLORS[int((crop @ torch.stack(texts).T).argmax())])
    colors = ClipColors(tiny, None, "cpu")
    objects = [cup(BOXES[0]), cup(BOXES[1], "dog"), cup(BOXES[2])]
    assert colors(image, objects) == names
    assert len(set(names)) > 1
    assert colors(image, []) == []
    assert set(colors._classifiers) == {"cup", "dog"}  # the texts of a class are computed once


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of weights, for an architecture that open_clip then has with both activations."""
    folder = tmp_path_factory.mktemp("architectures")
    for name, quick in {"Tiny-8": False, "Tiny-8-quickgelu": True}.items():
        (folder / f"{name}.json").write_text(json.dumps({**MODEL, "quick_gelu": quick}))
    open_clip.add_model_config(folder)
    torch.manual_seed(0)
    model = open_clip.model.CLIP(**MODEL)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    (folder / "weights").mkdir()
    save_file(model.state_dict(), folder / "weights" / "weights.safetensors")
    return str(folder / "weights" / "weights.safetensors")


def features(model: torch.nn.Module, preprocess: Any, tokenizer: Any, *_: Any) -> torch.Tensor:
    """[2, D]: of an image and of a text."""
    picture = Image.fromarray(np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3))
    with torch.no_grad():
        image = model.eval().encode_image(preprocess(picture)[None])
        return torch.cat([image, model.encode_text(tokenizer(["a photo of a red cup"]))])


def test_a_file_has_the_activation_that_it_was_trained_with(weights: str) -> None:
    expected = {}
    for quick in (False, True):
        model, _, preprocess = open_clip.create_model_and_transforms(
            "Tiny-8", pretrained=weights, force_quick_gelu=quick, weights_only=True
        )
        expected[quick] = features(model, preprocess, open_clip.get_tokenizer("Tiny-8"))
        colors = ClipColors("Tiny-8", weights, "cpu", quick)
        torch.testing.assert_close(features(*colors.loaded()), expected[quick])
    assert (expected[True] - expected[False]).abs().max() > 1e-2
    with pytest.raises(ValueError, match=r"`clip_quick_gelu`: .* set it to true for QuickGELU"):
        ClipColors("Tiny-8", weights, "cpu")
    named = features(*ClipColors("Tiny-8-quickgelu", weights, "cpu").loaded())
    torch.testing.assert_close(named, expected[True])
    beside = Path(weights).with_name("open_clip_config.json")
    for quick in (False, True):
        beside.write_text(json.dumps({"model_cfg": {**MODEL, "quick_gelu": quick}}))
        colors = ClipColors("Tiny-8", weights, "cpu")
        torch.testing.assert_close(features(*colors.loaded()), expected[quick])
    beside.unlink()


def test_settings_of_the_activation_that_have_no_effect_are_refused(
    tiny: str, weights: str
) -> None:
    for model, pretrained in ((tiny, None), ("ViT-L-14", "openai")):
        with pytest.raises(ValueError, match="`clip_quick_gelu`: only for a file"):
            ClipColors(model, pretrained, "cpu", quick_gelu=True)
    assert ClipColors("ViT-L-14", "openai").quick_gelu
    assert not ClipColors("ViT-L-14", "laion2b_s32b_b82k").quick_gelu
    with pytest.raises(ValueError, match="'Tiny-8-quickgelu' has QuickGELU; leave one"):
        ClipColors("Tiny-8-quickgelu", weights, "cpu", quick_gelu=False)


def test_the_ten_colours_of_geneval() -> None:
    assert len(COLORS) == 10
    assert {"gray", "cyan"}.isdisjoint(COLORS)


def test_boxes_outside_of_the_image_are_clamped_to_a_pixel(tiny: str, image: Pixels) -> None:
    colors = ClipColors(tiny, None, "cpu")
    outside = [cup((90.0, 70.0, 95.0, 75.0)), cup((-9.0, -9.0, -5.0, -5.0)), cup((5, 5, 5, 5))]
    assert set(colors(image, outside)) <= set(COLORS)


def test_clip_names_the_colours_of_objects_in_a_reward(
    tiny: str, image: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"detector": "some/model", "colors": "clip", "mode": "geneval", "device": "cpu"}
    clip = {"clip_model": tiny, "clip_pretrained": None}
    reward = ImageContents(ImageContents.Config.model_validate({**settings, **clip}))
    watched = ImageContents(ImageContents.Config.model_validate({**settings, **clip, "margin": 0}))
    assert watched._colors is reward._colors
    objects = [cup(BOXES[0]), cup(BOXES[1], "dog")]
    monkeypatch.setattr(reward, "_detector", lambda image, classes, **limits: objects)
    name = ClipColors(tiny, None, "cpu")(image, objects)[0]
    logged: dict[str, list[str]] = {}
    other = next(color for color in COLORS if color != name)
    include = [
        [{"class": "cup", "color": color}, {"class": "dog", "count": 1}] for color in (name, other)
    ]
    values = reward(
        ["p"] * 2, [image, image], include=include, log_extra=lambda key, v: logged.update({key: v})
    )
    assert values == [1.0, 0.0]
    assert logged["objects"] == [f"{name} cup, dog"] * 2
    with pytest.raises(ValueError, match="unknown colour 'gray'; it knows: red, orange"):
        reward(["p"], [image], include=[[{"class": "cup", "color": "gray"}]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_model": "ViT-L-15"}, "`clip_model`: unknown architecture 'ViT-L-15'"),
        ({"clip_pretrained": "opnai"}, "`clip_pretrained`: 'opnai' is no file, and .* openai,"),
        ({"clip_pretrained": None}, "`clip_pretrained`: None is no file"),
        ({"clip_model": "local-dir:/no/where"}, "`clip_model`: the folder '/no/where' holds no"),
        ({"detector": "shapes"}, "`colors: clip` needs a model as `detector`"),
        ({"detector": "/no/where"}, "no such file or folder as '/no/where'"),
    ],
)
def test_invalid_settings_are_refused_before_loading(
    settings: dict[str, str | None], message: str
) -> None:
    config = {"detector": "some/model", "colors": "clip", **settings}
    with pytest.raises(ValueError, match=message):
        ImageContents(ImageContents.Config.model_validate(config))


def test_errors_of_load_name_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = {"model_cfg": MODEL, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(settings))
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"nothing")
    config = {"detector": "some/model", "colors": "clip"}
    reward = ImageContents(ImageContents.Config.model_validate(config))  # ViT-L-14 of openai
    with pytest.raises(ValueError, match="`detector`: 'some/model' cannot be loaded: ") as first:
        reward.load()
    monkeypatch.setattr(reward._detector, "load", lambda: None)
    reward._colors = ClipColors(f"local-dir:{tmp_path}", None, "cpu")
    with pytest.raises(ValueError, match=r"`clip_model`: 'local-dir:.* loaded: ") as second:
        reward.load()
    assert "\n" not in f"{first.value}{second.value}"
