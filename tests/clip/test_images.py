"""Images are preprocessed as by open_clip and by transformers."""

import math

import pytest
import torch
from open_clip import image_transform
from PIL import Image
from torch.nn.functional import cosine_similarity

from groupwise_clip.images import Framing, images_of, pixels

MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
CPU = torch.device("cpu")
# PIL rounds to bytes after each of its two passes; the second can magnify errors of the first.
ROUNDING = 2.4 * 0.5 / 255 / 0.26
SIZES = [(48, 48), (32, 32), (20, 24), (131, 200), (333, 131), (64, 37)]
FRAMINGS = [
    {"size": (32, 32)},
    {"size": (24, 40)},
    {"size": (40, 24)},
    {"size": (32, 32), "interpolation": "bilinear"},
    {"size": (32, 32), "resize": "squash"},
    {"size": (24, 40), "resize": "squash"},
    {"size": (32, 32), "resize": "longest"},
    {"size": (32, 32), "resize": "longest", "fill": 0.2},
    {"size": (24, 40), "resize": "longest"},
]


@pytest.mark.parametrize("options", FRAMINGS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tensors_and_pil_images_are_framed_as_by_open_clip(options, size, pictures, pil):
    framing = Framing(mean=MEAN, std=STD, **options)
    images = pictures(0, 1, height=size[0], width=size[1])
    transform = image_transform(
        options["size"],
        is_train=False,
        mean=MEAN,
        std=STD,
        resize_mode=options.get("resize"),
        interpolation=options.get("interpolation"),
        fill_color=round(255 * options.get("fill", 0)),
    )
    expected = torch.stack([transform(image) for image in pil(images)])
    actual = pixels(images, framing, CPU)
    assert actual.shape == expected.shape == (2, 3, *options["size"])
    assert (actual - expected).abs().max() < ROUNDING
    assert torch.equal(pixels(pil(images), framing, CPU), actual)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_images_are_framed_as_by_transformers(size, pictures, pil, transformers_folder):
    from transformers import CLIPImageProcessor

    from groupwise_clip.transformers_format import Transformers

    images = pictures(0, 1, height=size[0], width=size[1])
    processor = CLIPImageProcessor.from_pretrained(transformers_folder)
    expected = processor(images=pil(images), return_tensors="pt")["pixel_values"]
    framing = Transformers(str(transformers_folder)).framing
    assert (pixels(images, framing, CPU) - expected).abs().max() < ROUNDING


def test_features_of_tensors_are_those_of_open_clip_for_pil_images(
    folder, load_open_clip, pictures, pil
):
    from groupwise_clip.model import Clip
    from groupwise_clip.settings import ClipSettings

    model, preprocess, _ = load_open_clip(folder)
    clip = Clip(ClipSettings(model=str(folder)))
    for height, width in SIZES:
        images = pictures(0, 1, 2, 3, height=height, width=width)
        with torch.no_grad():
            expected = model.encode_image(torch.stack([preprocess(i) for i in pil(images)]))
        features = clip.image_features(images)
        assert cosine_similarity(features, expected).min() > 0.9999
        # The features of different images differ much more.
        assert (features @ features.T).fill_diagonal_(0).max() < 0.99


def test_images_of_several_sizes_in_one_call(pictures, pil, rounding):
    framing = Framing(size=(32, 32), mean=MEAN, std=STD)
    images = [*pictures(0, 1), *pil(pictures(2, height=64, width=40)), *pictures(3, height=20)]
    together = pixels(images, framing, CPU)
    alone = torch.cat([pixels([image], framing, CPU) for image in images])
    rounding.same(lambda: pixels(images, framing, CPU), together, alone)


def test_half_precision_and_values_outside_of_0_to_1(pictures):
    framing = Framing(size=(48, 48), mean=(0, 0, 0), std=(1, 1, 1))
    (image,) = pictures(0)
    assert (pixels([image.bfloat16()], framing, CPU)[0] - image).abs().max() < 1 / 128
    clamped = pixels([3 * image - 1], framing, CPU)
    assert clamped.min() == 0
    assert clamped.max() == 1


def test_a_nan_in_one_image_does_not_affect_others(pictures):
    framing = Framing(size=(32, 32), mean=MEAN, std=STD)
    images = pictures(0, 1)
    images[0][0, 3, 3] = math.nan
    both = pixels(images, framing, CPU)
    assert both[0].isnan().any()
    assert not both[1].isnan().any()


def test_grey_and_transparent_pil_images(pictures, pil):
    framing = Framing(size=(48, 48), mean=(0, 0, 0), std=(1, 1, 1))
    (image,) = pil(pictures(0))
    transparent = image.copy()
    transparent.putalpha(128)
    assert torch.equal(pixels([transparent], framing, CPU), pixels([image], framing, CPU))
    grey = pixels([image.convert("L")], framing, CPU)
    assert torch.equal(grey[:, 0], grey[:, 2])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("a text", "image 1: expected a PIL image or a tensor, found str"),
        (None, "image 1: expected a PIL image or a tensor, found NoneType"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"found \[3, 8, 8\] uint8"),
        (torch.zeros(8, 8, 3), r"found \[8, 8, 3\] float32"),
        (torch.zeros(1, 3, 8, 8), "found a video, .* as the `reward` of `per_frame`"),
        (torch.zeros(3, 0, 8), "image 1: expected edges .* found 8 x 0 pixels"),
        (Image.new("RGB", (0, 0)), "found 0 x 0 pixels"),
        (torch.zeros(3, 5000, 1), "found 1 x 5000 pixels"),
        (Image.new("RGB", (21, 1)), "image 1: .* with a ratio of at most 20"),
    ],
)
def test_invalid_images_are_refused(image, message, pictures, pil):
    with pytest.raises(ValueError, match=message):
        images_of([*pil(pictures(0)), image], {})


def test_tensors_of_the_images_fact_are_used_instead_of_completions(pictures, pil):
    images = pictures(0, 1)
    completions = pil(images)
    assert images_of(completions, {"pixels": images})[1] is images[1]
    assert images_of([None, None], {"pixels": torch.stack(images)})[1].equal(images[1])
    assert images_of(completions, {}) == completions
    # A column of the data set with pictures to edit is not the policy's output.
    assert images_of(completions, {"pixels": pil(pictures(2, 3))}) == completions
    assert images_of(completions, {"pixels": [None, None]}) == completions
