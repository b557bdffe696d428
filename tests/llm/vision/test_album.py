"""The album: pictures are prepared once, and again only where a pass needs their pixels."""

import pytest
import torch
from PIL import Image
from tests.llm.vision import standins

from groupwise.kit.errors import UserError
from groupwise_llm.vision import album
from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings


@pytest.fixture
def codec():
    """codec(family, **settings) -> a new one, without a model."""

    def make(family, **settings):
        config = VisionSettings(model=str(standins.folder(family)), **settings)
        return VisionLanguageModel.make_codec(config, None, (), positions=None)

    return make


@pytest.fixture
def prepared(monkeypatch):
    """prepared(family) -> a list to which each call of its processor adds an image's size."""

    def counting(family):
        sizes, own = [], family.picture
        monkeypatch.setattr(
            family,
            "picture",
            lambda image, **limits: sizes.append(image.size) or own(image, **limits),
        )
        return sizes

    return counting


def noise(width, height, seed=0):
    values = torch.randint(
        256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )
    return Image.fromarray(values.numpy())


def question(image):
    return {"prompt": [{"role": "user", "content": "Which?"}], "image": image}


def test_equal_pixels_of_tiles_in_other_rows_are_another_picture(codec):
    own = codec("idefics3")
    side = own.reader.family.processor.image_processor.max_image_size["longest_edge"]
    wide, high = (Image.new("RGB", size, "red") for size in ((2 * side, side), (side, 2 * side)))
    rows = [question(wide), question(high), question(wide)]
    first, other, again = (context.prompt_ids.tolist() for context in own.encode(rows))
    assert first == again
    assert first != other
    pictures = [own.reader.album.picture(image) for image in (wide, high)]
    assert len({picture.first for picture in pictures}) == 2


def test_dropped_pictures_are_prepared_again_only_where_features_are_missing(
    make, prepared, monkeypatch
):
    monkeypatch.setattr(album, "KEPT", 1)
    policy = make()
    rows = [question(standins.picture(16, 16, seed)) for seed in range(3)]
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    sizes = prepared(policy.causal.family)
    with torch.no_grad():
        expected = [policy(rollouts).log_probs for _ in range(2)]
        assert sizes == []
        next(policy.model.model.visual.parameters()).add_(0)  # the tower has changed
        anew = policy(rollouts).log_probs
    assert sizes == [(16, 16)] * 2  # one is always kept
    assert torch.equal(anew, expected[0])
    assert torch.equal(anew, expected[1])


def test_packed_pictures_need_no_processor_for_their_tokens(codec, prepared):
    for family in ("qwen2_5_vl", "idefics3"):
        images = [noise(48, 32), noise(16, 64, 1)]
        before, after = (codec(family).reader.album for _ in range(2))
        own = [*map(before.picture, images)]
        sizes = prepared(after.family)
        unpacked = after.unpacked(before.packed(own))
        assert sizes == []
        for one, other in zip(own, unpacked, strict=True):
            assert one.ids == other.ids
            assert torch.equal(one.offsets, other.offsets)
            assert torch.equal(one.advances, other.advances)
            whole = after.complete(other).inputs
            assert all(torch.equal(value, whole[name]) for name, value in one.inputs.items())


def test_pictures_that_were_prepared_otherwise_are_refused(codec):
    before, after = (codec("qwen2_5_vl", max_pixels=n).reader.album for n in (4096, 512))
    (picture,) = after.unpacked(before.packed([before.picture(noise(64, 64))]))
    with pytest.raises(UserError, match=r"prepared otherwise \(policy.min_pixels"):
        after.complete(picture)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_large_picture_is_kept_and_packed_as_the_processor_reduces_it(codec, family):
    pixels = 4096
    own = codec(family, max_pixels=pixels).reader.album
    image = noise(300, 200)
    picture = own.picture(image)
    width, height = picture.image.size
    assert width * height <= pixels
    whole = own.family.picture(image, **own.limits)
    reduced = own.family.picture(picture.image, **own.limits)
    assert picture.first == whole.first
    assert all(torch.equal(reduced.inputs[name], own) for name, own in whole.inputs.items())
    assert own.packed([picture]).nbytes < 3 * pixels + 10 * len(picture) + 100
    small = noise(8, 8)  # which the processor enlarges
    assert own.picture(small).image.tobytes() == small.tobytes()


def test_an_album_counts_images(codec, prepared, monkeypatch):
    own = codec("gemma3").reader.album
    images = [noise(600, 400, seed) for seed in range(2)]
    inputs = sum(value.nbytes for value in own.picture(images[0]).inputs.values())
    monkeypatch.setattr(album, "KEPT", 2 * inputs + 600 * 400 * 3)
    sizes = prepared(own.family)
    for image in (images[0], images[1], images[0]):
        own.picture(image)
    assert sizes == [(600, 400)] * 2  # the first was dropped for the second


def test_as_many_sizes_are_kept_as_the_album_has_room_for(codec, prepared, monkeypatch):
    monkeypatch.setattr(album, "BLANK", 2)
    own = codec("qwen2_5_vl").reader.album
    sizes = prepared(own.family)
    for width in (16, 24, 16, 32, 24, 16):
        own.blank((width, 16))
    assert sizes == [(16, 16), (24, 16), (32, 16), (24, 16), (16, 16)]
