"""Images that must earn nothing, and images that no policy makes."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from safetensors.torch import save_file
from tests.effort import Effort

from groupwise_clip.aesthetic import Aesthetic
from groupwise_clip.preference import Preference
from groupwise_clip.similarity import ClipSimilarity
from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.diversity import ImageDiversity
from groupwise_verifiable.images.jpeg import JpegSize
from groupwise_verifiable.images.ocr import ImageText

sys.path.insert(0, str(Path(__file__).parents[1] / "verifiable"))
import tiny_owl

Tries = Callable[[int], None]
Draw = Callable[[ImageDraw.ImageDraw], object]

CLIP = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 8, "heads": 1, "layers": 1},
}


def draw_image(*parts: Draw, side: int = 64, background: str = "white") -> Image.Image:
    image = Image.new("RGB", (side, side), background)
    for part in parts:
        part(ImageDraw.Draw(image))
    return image


def disk(x: float, y: float, radius: float = 10, color: str = "red", **options: Any) -> Draw:
    box = (x - radius, y - radius, x + radius, y + radius)
    return lambda draw: draw.ellipse(box, fill=color, **options)


def square(x: float, y: float, half: float = 9, color: str = "red") -> Draw:
    return lambda draw: draw.rectangle((x - half, y - half, x + half, y + half), fill=color)


def noise(height: int, width: int) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3))
    return values.astype(np.uint8)


RED_DISK = draw_image(disk(32, 32))
# None of these is one red disk and nothing else.
WRONG_SCENES = {
    "nothing": draw_image(),
    "all red": draw_image(background="red"),
    "noise": Image.fromarray(noise(64, 64)),
    "a gradient": Image.linear_gradient("L").resize((64, 64)).convert("RGB"),
    "two": draw_image(disk(16, 32), disk(48, 32)),
    "two that touch": draw_image(disk(22, 32), disk(42, 32)),
    "two that overlap": draw_image(disk(26, 32), disk(38, 32)),
    "twenty-five": draw_image(
        *(disk(8 + 12 * x, 8 + 12 * y, 4) for x in range(5) for y in range(5))
    ),
    "green": draw_image(disk(32, 32, color="green")),
    "orange": draw_image(disk(32, 32, color="orange")),
    "pink": draw_image(disk(32, 32, color="pink")),
    "faint": draw_image(disk(32, 32, color="#ffeeee")),
    "a square": draw_image(square(32, 32)),
    "a triangle": draw_image(lambda draw: draw.polygon([(32, 20), (20, 44), (44, 44)], fill="red")),
    "half a disk": draw_image(lambda draw: draw.pieslice((20, 20, 44, 44), 0, 180, fill="red")),
    "three quarters": draw_image(lambda draw: draw.pieslice((20, 20, 44, 44), 0, 270, fill="red")),
    "an ellipse": draw_image(lambda draw: draw.ellipse((8, 24, 56, 40), fill="red")),
    "a ring": draw_image(lambda draw: draw.ellipse((20, 20, 44, 44), outline="red", width=4)),
    "cut off by the edge": draw_image(disk(0, 32)),
    "a speck": draw_image(disk(32, 32, 1)),
    "with a square": draw_image(disk(16, 32), square(48, 32)),
    "with a green disk": draw_image(disk(16, 32), disk(48, 32, color="green")),
    "with a line": draw_image(disk(16, 32), lambda draw: draw.line((40, 4, 40, 60), "blue", 4)),
    "on a square": draw_image(square(32, 32, 20, "blue"), disk(32, 32)),
    "its name": draw_image(lambda draw: draw.text((4, 24), "red disk", fill="red")),
    "melted": draw_image(disk(22, 32, 6), square(38, 34, 8)).filter(ImageFilter.GaussianBlur(3)),
}


@pytest.mark.attack("An image is right only if all of it is", "images that are not one red disk")
def test_images_of_other_scenes_earn_nothing(tries: Tries) -> None:
    row = [{"class": "disk", "color": "red"}]
    strict, partial_reward = ImageContents(), ImageContents(ImageContents.Config(mode="partial"))
    assert strict(["p"], [RED_DISK], include=[row]) == [1.0]
    scenes = list(WRONG_SCENES.values())
    columns = {"include": [row] * len(scenes)}
    values = strict(["p"] * len(scenes), scenes, **columns)
    assert dict(zip(WRONG_SCENES, values, strict=True)) == dict.fromkeys(WRONG_SCENES, 0.0)
    shares = dict(
        zip(WRONG_SCENES, partial_reward(["p"] * len(scenes), scenes, **columns), strict=True)
    )
    assert all(share is not None and share < 1.0 for share in shares.values())
    assert {shares[name] for name in ("nothing", "all red", "faint", "a speck")} == {0.0}
    tries(2 * len(scenes))


def image_of_text(
    text: str, size: int = 32, ink: str = "black", background: str = "white"
) -> Image.Image:
    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(text)
    image = Image.new("RGB", (int(right - left) + 16, int(bottom - top) + 16), background)
    ImageDraw.Draw(image).text((8 - left, 8 - top), text, ink, font)
    return image


@pytest.fixture(scope="module")
def reader() -> ImageText:
    return ImageText()


@pytest.mark.attack(
    "Writing is right only if it is exactly the target", "other words, and images without words"
)
def test_images_of_other_words_earn_less_than_1(reader: ImageText, tries: Tries) -> None:
    without_word = [
        draw_image(),
        draw_image(background="black"),
        Image.fromarray(noise(48, 160)),
        image_of_text("..."),
    ]
    without_word += [image_of_text("12345"), image_of_text("XYZQ"), image_of_text("HARBOR HARBOR")]
    others = ["HARBO", "ARBOR", "HARBORS", "HARBOUR", "HARBER", "THE HARBOR", "DOG"]
    others += ["HARBOR 1", "ROBRAH", "H A R B", "HARBOR or PORT", "SHARBORT", "HARB0R5", "HXRBXR"]
    pictures = [*without_word, *map(image_of_text, others)]
    values = reader(["p"] * len(pictures), pictures, text=["HARBOR"] * len(pictures))
    assert reader(["p"], [image_of_text("HARBOR")], text=["HARBOR"]) == [1.0]
    assert values[: len(without_word)] == [0.0] * len(without_word)
    assert all(value is not None and value < 1.0 for value in values)
    tries(len(pictures))


def flat(height: int, width: int) -> Image.Image:
    return Image.new("RGB", (width, height), "teal")


def stripes(height: int, width: int) -> Image.Image:
    values = np.zeros((height, width, 3), np.uint8)
    values[:, 1::3] = 255
    return Image.fromarray(values)


SIZES = [(5000, 1), (1, 5000), (40000, 4), (4, 40000), (1, 1), (2, 3), (300, 300)]
MODES = ("1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "I;16", "F")
UNUSUAL: dict[str, Any] = {
    **{f"{make.__name__} {h} x {w}": make(h, w) for h, w in SIZES for make in (flat, stripes)},
    **{f"noise {h} x {w}": Image.fromarray(noise(h, w)) for h, w in SIZES},
    **{f"mode {mode}": Image.new(mode, (32, 32)) for mode in MODES},
    **{f"tensor {h} x {w}": torch.rand(3, h, w) for h, w in SIZES[:4]},
    "no pixels": Image.new("RGB", (0, 0)),
    "no rows": np.zeros((0, 8, 3)),
    "no columns": torch.zeros(3, 8, 0),
    "gray": np.zeros((8, 8)),
    "one channel": np.zeros((8, 8, 1)),
    "four channels": np.zeros((8, 8, 4)),
    "a number": np.float64(0.5),
    "bool": np.ones((8, 8, 3), bool),
    "int64": np.zeros((8, 8, 3), np.int64),
    "16 bits": np.full((8, 8, 3), 65535, np.uint16),
    "complex": np.zeros((8, 8, 3), complex),
    "objects": np.zeros((8, 8, 3), object),
    "letters": np.full((8, 8, 3), "a"),
    "NaN": np.full((8, 8, 3), np.nan),
    "infinity": np.full((8, 8, 3), np.inf),
    "1e300": np.full((8, 8, 3), 1e300),
    "below zero": np.full((8, 8, 3), -0.1),
    "half precision": np.zeros((8, 8, 3), np.float16),
    "bfloat16": torch.zeros(3, 8, 8, dtype=torch.bfloat16),
    "integer tensor": torch.zeros(3, 8, 8, dtype=torch.int64),
    "flat tensor": torch.zeros(8, 8),
    "text": "a picture of a cat",
    "messages": [{"role": "assistant", "content": "a picture"}],
    "none": None,
}


@pytest.fixture(scope="module")
def rewards(
    tmp_path_factory: pytest.TempPathFactory, reader: ImageText
) -> dict[str, Callable[[Any], Any]]:
    """Every reward of images, by name, as a function of one image."""
    clip, owl = tmp_path_factory.mktemp("clip"), tmp_path_factory.mktemp("owl")
    torch.manual_seed(0)
    model_config = {"model_cfg": CLIP, "preprocess_cfg": {}}
    (clip / "open_clip_config.json").write_text(json.dumps(model_config))
    weights = open_clip.model.CLIP(**CLIP).state_dict()
    save_file(weights, clip / "open_clip_model.safetensors")
    save_file({"weight": torch.randn(1, 8)}, clip / "head.safetensors")
    tiny_owl.save(owl)
    settings = {"model": str(clip), "device": "cpu"}
    row = [{"class": "disk", "color": "red"}]
    detector = ImageContents.Config(detector=str(owl), threshold=0.0, device="cpu")
    similarity = [
        ClipSimilarity(ClipSimilarity.Config(**settings, resize=way))
        for way in ("shortest", "longest", "squash")
    ]
    aesthetic = Aesthetic(Aesthetic.Config(**settings, head=str(clip / "head.safetensors")))

    def score(reward: Any, image: Any, **columns: Any) -> Any:
        return reward(["a cat"], [image], **columns)

    by_name = {
        "image_contents shapes": partial(score, ImageContents(), include=[row]),
        "image_contents owl": partial(score, ImageContents(detector), include=[row]),
        "image_text": partial(score, reader, text=["CAT"]),
        "jpeg_size": partial(score, JpegSize()),
        "image_diversity": lambda image: ImageDiversity()(["p"] * 2, [image] * 2, groups=[0, 0]),
        "preference": partial(score, Preference(Preference.Config(**settings))),
        "aesthetic": partial(score, aesthetic),
    }
    ways = zip(("shortest", "longest", "squash"), similarity, strict=True)
    return by_name | {f"clip_similarity {way}": partial(score, reward) for way, reward in ways}


NAMES = (
    *("image_contents shapes", "image_contents owl", "image_text", "jpeg_size", "image_diversity"),
    *("preference", "aesthetic", "clip_similarity shortest", "clip_similarity longest"),
    "clip_similarity squash",
)


@pytest.mark.attack(
    "Any image gets a value within limits of time and memory, or an error of one sentence",
    "sizes up to 40000 x 4, and modes, values and types that no policy makes",
)
@pytest.mark.parametrize("name", NAMES)
def test_any_image_gets_a_value_or_an_error_of_one_sentence(
    name: str, rewards: dict[str, Callable[[Any], Any]], tries: Tries
) -> None:
    rewards[name](flat(32, 32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind, image in UNUSUAL.items():
        with Effort() as effort:
            try:
                values = rewards[name](image)
            except ValueError as error:
                message = str(error)
                assert "completion 0" in message or "image 0" in message, (kind, message)
                assert "\n" not in message, kind
            else:
                assert all(isinstance(value, float) for value in values), kind
                assert not any(np.isnan(values)), kind
        assert effort.cpu < 2, kind
        tries(1)
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # kilobytes
    assert growth < 500_000
