"""Features: those of the model itself, whatever the batch, the format and the order."""

import pytest
import torch

from groupwise_clip import model as module
from groupwise_clip.model import Clip
from groupwise_clip.settings import ClipSettings


def clip(folder, **settings):
    made = Clip(ClipSettings(model=str(folder), **settings))
    made.load()
    return made


def counted(made, monkeypatch):
    """The batches of texts that the model is really asked for."""
    asked, encode = [], made._encoder.encode_texts

    def count(texts, device):
        asked.append(list(texts))
        return encode(texts, device)

    monkeypatch.setattr(made._encoder, "encode_texts", count)
    return asked


def test_open_clips_own_features(folder, theirs, pictures, pil, texts):
    model, preprocess, tokenize = theirs(folder)
    images = pictures(0, 1, 2, height=32, width=32)  # at the model's size nothing is rounded
    with torch.no_grad():
        shown = model.encode_image(torch.stack([preprocess(i) for i in pil(images)]), True)
        meant = model.encode_text(tokenize(texts), True)
    ours = clip(folder)
    assert torch.allclose(ours.image_features(images), shown, atol=1e-5)
    assert torch.allclose(ours.text_features(texts), meant, atol=1e-5)
    assert ours.scale == pytest.approx(model.logit_scale.exp().item())
    assert ours.width == shown.shape[1]


def test_transformers_own_logits(transformers_folder, pictures, pil, texts):
    from transformers import AutoProcessor, CLIPModel

    model = CLIPModel.from_pretrained(transformers_folder)
    processor = AutoProcessor.from_pretrained(transformers_folder)
    images = pictures(0, 1, 2, 3, height=32, width=32)
    inputs = processor(images=pil(images), text=texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits_per_image.diagonal()
    ours = clip(transformers_folder)
    cosines = ours.cosines(images, texts)
    assert [ours.scale * cosine for cosine in cosines] == pytest.approx(logits.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ["folder", "transformers_folder"])
def test_features_have_unit_length_and_no_gradient(kind, request, pictures, texts):
    ours = clip(request.getfixturevalue(kind))
    for features in (ours.image_features(pictures(0, 1)), ours.text_features(texts)):
        assert features.dtype == torch.float32
        assert not features.requires_grad
        assert torch.allclose(features.norm(dim=1), torch.ones(len(features)))
    assert not any(p.requires_grad for p in ours._encoder.module.parameters())
    assert not ours._encoder.module.training


@pytest.mark.parametrize("kind", ["folder", "transformers_folder"])
def test_batches_change_nothing(kind, request, pictures, texts):
    where = request.getfixturevalue(kind)
    images = pictures(*range(5))
    many = [*texts, "a much longer text of many words", "x"]
    whole, cut = clip(where, batch=32), clip(where, batch=2)
    assert torch.allclose(whole.image_features(images), cut.image_features(images), atol=1e-5)
    assert torch.allclose(whole.text_features(many), cut.text_features(many), atol=1e-5)
    alone = torch.cat([whole.image_features([image]) for image in images])
    assert torch.allclose(whole.image_features(images), alone, atol=1e-5)


def test_long_texts_are_cut_off(folder, transformers_folder):
    for where in (folder, transformers_folder):
        ours = clip(where)
        long = "a b c d e f g h i j k l m n o p q r s t"
        features = ours.text_features([long, f"{long} u v w", "a b c"])
        assert torch.allclose(features[0], features[1], atol=1e-6)
        assert not torch.allclose(features[0], features[2], atol=1e-2)


def test_texts_are_computed_once(folder, texts, monkeypatch):
    ours = clip(folder, batch=2)
    asked = counted(ours, monkeypatch)
    first = ours.text_features(texts)
    assert asked == [["a red square", "two cats on a sofa"], ["the sea"]]
    assert torch.equal(first[0], first[3])
    again = ours.text_features([*texts, "the sky"])
    assert asked[2:] == [["the sky"]]
    assert torch.equal(again[:4], first)


def test_the_texts_used_longest_ago_are_forgotten(folder, monkeypatch):
    monkeypatch.setattr(module, "_CACHED", 3)
    ours = clip(folder)
    asked = counted(ours, monkeypatch)
    ours.text_features(["a", "b", "c"])
    ours.text_features(["a"])
    ours.text_features(["d"])
    assert list(ours._cache) == ["c", "a", "d"]
    # More texts in a call than are remembered.
    everything = ours.text_features(list("abcdef"))
    assert asked == [["a", "b", "c"], ["d"], ["b", "e", "f"]]
    assert everything.shape == (6, ours.width)
    assert len(ours._cache) == 3


def test_cosines(folder, pictures, texts):
    ours = clip(folder)
    images = pictures(0, 1, 2, 3)
    expected = (ours.image_features(images) * ours.text_features(texts)).sum(1).tolist()
    assert ours.cosines(images, texts) == pytest.approx(expected)
    some = ours.cosines(images, [texts[0], None, texts[2], None])
    assert some[1] is some[3] is None
    assert [some[0], some[2]] == pytest.approx([expected[0], expected[2]], abs=1e-6)
    assert ours.cosines(images, [None] * 4) == [None] * 4


def test_bf16_is_close_and_its_features_float32(folder, pictures, texts):
    images = pictures(0, 1, 2, 3)
    exact, rough = clip(folder), clip(folder, precision="bf16")
    shown = rough.image_features(images)
    assert shown.dtype == torch.float32
    assert not torch.equal(shown, exact.image_features(images))
    assert rough.cosines(images, texts) == pytest.approx(exact.cosines(images, texts), abs=0.03)
    with torch.autocast("cpu", torch.bfloat16):  # of whoever calls
        assert torch.equal(exact.image_features(images), clip(folder).image_features(images))


def test_another_way_of_resizing(folder_of, pictures):
    images = pictures(0, height=40, width=90)
    squashed = clip(folder_of(preprocess={"resize_mode": "squash"}))
    assert squashed._encoder.framing.resize == "squash"
    told = clip(folder_of(), resize="squash")
    assert torch.allclose(told.image_features(images), squashed.image_features(images))
    assert not torch.allclose(told.image_features(images), clip(folder_of()).image_features(images))


def test_normalisation_is_the_models(folder_of):
    said = {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear"}
    framing = clip(folder_of(preprocess=said))._encoder.framing
    assert (framing.mean, framing.std) == ((0.5, 0.5, 0.5), (0.2, 0.3, 0.4))
    assert framing.interpolation == "bilinear"


def test_it_goes_where_the_images_are(folder, pictures, texts):
    ours, elsewhere = clip(folder), torch.empty(3, 8, 8, device="meta")
    assert ours._device_of([elsewhere]) == elsewhere.device
    assert clip(folder, device="cpu")._device_of([elsewhere]) == torch.device("cpu")
    ours.text_features(texts)
    ours._move(elsewhere.device)
    assert all(p.device == elsewhere.device for p in ours._encoder.module.parameters())
    assert not ours._cache


def test_devices(folder):
    assert clip(folder, device="cpu")._device == torch.device("cpu")
    with pytest.raises(ValueError, match="unknown device 'gpu': expected for instance 'cpu'"):
        clip(folder, device="gpu")
    with pytest.raises(ValueError, match=r"device 'cuda:99': there are \d+ CUDA devices"):
        clip(folder, device="cuda:99")
