"""Features: those of open_clip and of transformers, in any batch, each text computed once."""

from functools import partial

import pytest
import torch

from groupwise_clip import model as module
from groupwise_clip.model import Clip
from groupwise_clip.settings import ClipSettings


def clip(folder, **settings):
    model = Clip(ClipSettings(model=str(folder), **settings))
    model.load()
    return model


def counted(model, monkeypatch):
    """A list that grows by each batch of texts that the model encodes."""
    batches, encode = [], model._encoder.encode_texts

    def count(texts, device):
        batches.append(list(texts))
        return encode(texts, device)

    monkeypatch.setattr(model._encoder, "encode_texts", count)
    return batches


def test_features_are_those_of_open_clip(folder, load_open_clip, pictures, pil, texts, rounding):
    model, preprocess, tokenize = load_open_clip(folder)
    images = pictures(0, 1, 2, height=32, width=32)  # not resized, so nothing is rounded
    with torch.no_grad():
        image_features = model.encode_image(torch.stack([preprocess(i) for i in pil(images)]), True)
        text_features = model.encode_text(tokenize(texts), True)
    clip_model = clip(folder)
    rounding.same(lambda: clip_model.image_features(images), image_features)
    rounding.same(lambda: clip_model.text_features(texts), text_features)
    assert clip_model.scale == pytest.approx(model.logit_scale.exp().item())
    assert clip_model.width == image_features.shape[1]


def test_logits_are_those_of_transformers(transformers_folder, pictures, pil, texts, rounding):
    from transformers import AutoProcessor, CLIPModel

    model = CLIPModel.from_pretrained(transformers_folder)
    processor = AutoProcessor.from_pretrained(transformers_folder)
    images = pictures(0, 1, 2, 3, height=32, width=32)
    inputs = processor(images=pil(images), text=texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits_per_image.diagonal()
    clip_model = clip(transformers_folder)
    rounding.same(
        lambda: clip_model.scale * torch.tensor(clip_model.cosines(images, texts)), logits
    )


@pytest.mark.parametrize("kind", ["folder", "transformers_folder"])
def test_features_have_unit_length_and_no_gradient(kind, request, pictures, texts):
    clip_model = clip(request.getfixturevalue(kind))
    for features in (clip_model.image_features(pictures(0, 1)), clip_model.text_features(texts)):
        assert features.dtype == torch.float32
        assert not features.requires_grad
        assert torch.allclose(features.norm(dim=1), torch.ones(len(features)))
    assert not any(p.requires_grad for p in clip_model._encoder.module.parameters())
    assert not clip_model._encoder.module.training


@pytest.mark.parametrize("kind", ["folder", "transformers_folder"])
def test_the_batch_size_does_not_change_features(kind, request, pictures, texts, rounding):
    model_folder = request.getfixturevalue(kind)
    images = pictures(*range(5))
    more_texts = [*texts, "a much longer text of many words", "x"]
    large, small = clip(model_folder, batch=32), clip(model_folder, batch=2)
    rounding.same(lambda: large.text_features(more_texts), small.text_features(more_texts))
    alone = torch.cat([large.image_features([image]) for image in images])
    rounding.same(lambda: large.image_features(images), alone, small.image_features(images))


def test_long_texts_are_truncated(folder, transformers_folder, rounding):
    for model_folder in (folder, transformers_folder):
        clip_model = clip(model_folder)
        long = "a b c d e f g h i j k l m n o p q r s t"
        features = clip_model.text_features([long, f"{long} u v w", "a b c"])
        rounding.same(partial(clip_model.text_features, [long]), features[:1], features[1:2])
        assert not torch.allclose(features[0], features[2], atol=1e-2)


def test_texts_are_computed_once(folder, texts, monkeypatch):
    model = clip(folder, batch=2)
    batches = counted(model, monkeypatch)
    first = model.text_features(texts)
    assert batches == [["a red square", "two cats on a sofa"], ["the sea"]]
    assert torch.equal(first[0], first[3])
    again = model.text_features([*texts, "the sky"])
    assert batches[2:] == [["the sky"]]
    assert torch.equal(again[:4], first)


def test_the_cache_drops_the_least_recently_used_texts(folder, monkeypatch):
    monkeypatch.setattr(module, "_CACHED", 3)
    model = clip(folder)
    batches = counted(model, monkeypatch)
    model.text_features(["a", "b", "c"])
    model.text_features(["a"])
    model.text_features(["d"])
    assert list(model._cache) == ["c", "a", "d"]
    # More texts in a call than the cache holds.
    everything = model.text_features(list("abcdef"))
    assert batches == [["a", "b", "c"], ["d"], ["b", "e", "f"]]
    assert everything.shape == (6, model.width)
    assert len(model._cache) == 3


def test_cosines(folder, pictures, texts, rounding):
    clip_model = clip(folder)
    images = pictures(0, 1, 2, 3)
    expected = (clip_model.image_features(images) * clip_model.text_features(texts)).sum(1).tolist()
    assert clip_model.cosines(images, texts) == pytest.approx(expected)
    some = clip_model.cosines(images, [texts[0], None, texts[2], None])
    assert some[1] is some[3] is None
    rounding.same(
        lambda: torch.tensor(clip_model.cosines(images, texts))[[0, 2]],
        torch.tensor([some[0], some[2]]),
    )
    assert clip_model.cosines(images, [None] * 4) == [None] * 4


def test_bf16_gives_close_features_in_float32(folder, pictures, texts):
    images = pictures(0, 1, 2, 3)
    exact, rounded = clip(folder), clip(folder, precision="bf16")
    features = rounded.image_features(images)
    assert features.dtype == torch.float32
    assert not torch.equal(features, exact.image_features(images))
    assert rounded.cosines(images, texts) == pytest.approx(exact.cosines(images, texts), abs=0.03)
    with torch.autocast("cpu", torch.bfloat16):  # an autocast of the caller has no effect
        assert torch.equal(exact.image_features(images), clip(folder).image_features(images))


def test_resize_overrides_the_models_way_of_resizing(folder_of, pictures, rounding):
    images = pictures(0, height=40, width=90)
    squashed = clip(folder_of(preprocess={"resize_mode": "squash"}))
    assert squashed._encoder.framing.resize == "squash"
    configured = clip(folder_of(), resize="squash")
    rounding.same(lambda: configured.image_features(images), squashed.image_features(images))
    assert not torch.allclose(
        configured.image_features(images), clip(folder_of()).image_features(images)
    )


def test_normalisation_is_read_from_the_models_config(folder_of):
    config = {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear"}
    framing = clip(folder_of(preprocess=config))._encoder.framing
    assert (framing.mean, framing.std) == ((0.5, 0.5, 0.5), (0.2, 0.3, 0.4))
    assert framing.interpolation == "bilinear"


def test_the_model_moves_to_the_device_of_the_images(folder, pictures, texts):
    clip_model, elsewhere = clip(folder), torch.empty(3, 8, 8, device="meta")
    assert clip_model._device_of([elsewhere]) == elsewhere.device
    assert clip(folder, device="cpu")._device_of([elsewhere]) == torch.device("cpu")
    clip_model.text_features(texts)
    clip_model._move(elsewhere.device)
    assert all(p.device == elsewhere.device for p in clip_model._encoder.module.parameters())
    assert not clip_model._cache


def test_unknown_devices_are_refused(folder):
    assert clip(folder, device="cpu")._device == torch.device("cpu")
    with pytest.raises(ValueError, match="unknown device 'gpu': expected for instance 'cpu'"):
        clip(folder, device="gpu")
    with pytest.raises(ValueError, match=r"device 'cuda:99': there are \d+ CUDA devices"):
        clip(folder, device="cuda:99")
