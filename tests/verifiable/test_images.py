"""Images as arrays, `jpeg_size` and `image_diversity`."""

from __future__ import annotations

import tracemalloc
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from groupwise.rewards import Reward
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise_verifiable.images.diversity import ImageDiversity
from groupwise_verifiable.images.jpeg import JpegSize
from groupwise_verifiable.images.pixels import picture, pixels


def flat(value: int, size: tuple[int, int] = (8, 4)) -> Image.Image:
    return Image.new("RGB", size, (value,) * 3)


def noise(side: int, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_every_kind_of_image_gives_the_same_array() -> None:
    integers = np.random.default_rng(0).integers(0, 256, (4, 8, 3), dtype=np.uint8)
    floats = (integers / 255).astype(np.float32)
    image = Image.fromarray(integers)
    tensor = torch.from_numpy(floats).permute(2, 0, 1)
    transparent = image.convert("RGBA")
    integer_tensor = torch.from_numpy(integers).permute(2, 0, 1)
    images = [image, transparent, integers, floats, tensor, tensor.double(), integer_tensor]
    arrays = pixels(images, reward="r")
    for each in arrays:
        assert each.dtype == np.float32
        np.testing.assert_allclose(each, floats, atol=1e-6)
    (rounded,) = pixels([tensor.bfloat16()], reward="r")
    np.testing.assert_allclose(rounded, floats, atol=2**-8)
    grey = pixels([image.convert("L")], reward="r")[0]
    assert grey.shape == (4, 8, 3)
    assert np.asarray(picture(arrays[0])).tolist() == integers.tolist()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("a picture", "expected an image .*, found str"),
        ([{"role": "assistant", "content": "a picture"}], "found list"),
        (None, "found NoneType"),
        (np.zeros((4, 8)), r"expected an RGB image, found the shape \(4, 8\)"),
        (np.zeros((3, 4, 8)), r"found the shape \(3, 4, 8\)"),
        (torch.zeros(4, 8, 3), r"found the shape \(4, 8, 3\)"),
        (np.zeros((0, 8, 3)), r"found the shape \(0, 8, 3\)"),
        (np.full((4, 8, 3), 255.0), "expected floats from 0 to 1, found 255 to 255"),
        (np.full((4, 8, 3), -0.5), "found -0.5 to -0.5"),
        (np.full((4, 8, 3), np.nan), "found nan to nan"),
        (np.full((4, 8, 3), 1e300), "found 1e\\+300 to 1e\\+300"),
        (np.zeros((4, 8, 3), np.int64), "expected bytes or floats, found int64"),
        (np.zeros((4, 8, 3), np.uint16), "expected bytes or floats, found uint16"),
        (np.zeros((4, 8, 3), complex), "expected bytes or floats, found complex128"),
        (np.full((4, 8, 3), "a"), "expected bytes or floats, found <U1"),
    ],
)
def test_invalid_images_are_refused_by_completion(image: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"reward 'r', completion 1: .*{message}"):
        pixels([flat(0), image], reward="r")


def test_jpeg_size() -> None:
    images = [flat(128, (64, 64)), noise(64)]
    sizes = []
    for image in images:
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=95)
        sizes.append(len(buffer.getvalue()) / 1000)
    assert sizes[0] < 1 < sizes[1]
    assert JpegSize()(["p"] * 2, images) == [-sizes[0], -sizes[1]]
    assert JpegSize(JpegSize.Config(direction="larger"))(["p"] * 2, images) == sizes
    (coarse,) = JpegSize(JpegSize.Config(direction="larger", quality=10))(["p"], images[1:])
    assert coarse is not None
    assert coarse < sizes[1] / 2
    with pytest.raises(ValidationError, match="'smaller' or 'larger'"):
        JpegSize.Config.model_validate({"direction": "up"})
    with pytest.raises(ValueError, match="'jpeg_size', completion 0: expected an image"):
        JpegSize()(["p"], ["text"])
    with pytest.raises(ValueError, match=r"completion 1: .* more than 65500 .*, found 65501 x 1"):
        JpegSize()(["p"] * 2, [flat(0), flat(0, (65501, 1))])


def test_diversity_is_the_mean_distance_within_a_group() -> None:
    images = [flat(0), flat(51), flat(255), flat(102), flat(102), flat(7)]
    values = ImageDiversity()(["a"] * 6, images, groups=[0, 0, 0, 1, 1, 2])
    # Distances of 0, 0.2 and 1: (0.2 + 1) / 2, (0.2 + 0.8) / 2, (1 + 0.8) / 2.
    assert values[:3] == pytest.approx([0.6, 0.5, 0.9])
    assert values[3:] == [0.0, 0.0, None]


def test_the_distance_is_the_root_mean_square_difference() -> None:
    half = np.zeros((2, 4, 3), np.uint8)
    half[:, :2] = 255
    values = ImageDiversity()(["p"] * 2, [flat(0, (4, 2)), half], groups=[0, 0])
    assert values == pytest.approx([np.sqrt(0.5)] * 2)


def test_distances_are_computed_for_two_images_at_a_time() -> None:
    group = [np.full((256, 256, 3), shade, np.uint8) for shade in range(0, 240, 10)]
    ImageDiversity()(["p"] * 2, group[:2], groups=[0, 0])
    tracemalloc.start()
    size = 24 * 256 * 256 * 3 * 4  # the images themselves, as float32
    ImageDiversity()(["p"] * len(group), group, groups=[0] * len(group))
    # All distances at once in float64 would take 6 times as much.
    assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    tracemalloc.stop()


def test_a_prompt_drawn_twice_makes_two_groups() -> None:
    """Each of two equal pictures; as one group of four, each would have a distance of 2/3."""
    rollouts = Rollouts(
        prompts=[{"prompt": "a"}] * 4,
        completions=[flat(0), flat(0), flat(255), flat(255)],
        groups=torch.tensor([4, 4, 6, 6]),
        mask=torch.ones(4, 1, dtype=torch.bool),
        truncated=torch.zeros(4, dtype=torch.bool),
    )
    scorer = Scorer([Reward(name="diversity", function=ImageDiversity())])
    assert scorer(rollouts).total.tolist() == [0.0] * 4
    # Groups need not be adjacent, and what is left of a group is one.
    mixed = scorer(rollouts.select([0, 2, 1])).total
    assert mixed[:3:2].tolist() == [0.0, 0.0]
    assert mixed[1].isnan()


def test_images_of_a_group_must_have_one_size() -> None:
    with pytest.raises(ValueError, match="a group must have one size, found 4x4 and 8x4"):
        ImageDiversity()(["p"] * 2, [flat(0), flat(0, (4, 4))], groups=[0, 0])
    images = [flat(0), flat(0, (4, 4))]
    assert ImageDiversity()(["p"] * 2, images, groups=[0, 1]) == [None, None]
