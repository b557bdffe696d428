"""`image_text`: the text that RapidOCR reads in pictures, against a target."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import rapidocr
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from pydantic import ValidationError

from groupwise_verifiable.images.ocr import ImageText, edits

# Letters that are not confused at this size, unlike O and 0, I and 1, Q and O.
LETTERS = "ACEFGKLMNPRU3479"


def picture_of(text: str, size: tuple[int, int] = (64, 32), letters: int = 20) -> Image.Image:
    image = Image.new("RGB", size, "white")
    middle = (size[0] / 2, size[1] / 2)
    font = ImageFont.load_default(letters)
    ImageDraw.Draw(image).text(middle, text, font=font, fill=(30, 30, 30), anchor="mm")
    return image


def degraded(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    values = np.asarray(image.filter(ImageFilter.GaussianBlur(0.5))) / 255
    values = values + rng.normal(0, 0.04, values.shape)
    return Image.fromarray(np.round(values.clip(0, 1) * 255).astype(np.uint8))


@pytest.fixture(scope="module")
def reward() -> ImageText:
    return ImageText()


@pytest.mark.parametrize("width", [320, 144])
@pytest.mark.slow(after=1)
def test_small_strings_are_read(width: int) -> None:
    reward = ImageText(ImageText.Config(width=width))
    rng, noise_rng = random.Random(0), np.random.default_rng(0)
    texts = ["".join(rng.choices(LETTERS, k=1 + index % 3)) for index in range(30)]
    images = [
        degraded(picture_of(text, (48, 32) if index % 2 else (64, 32)), noise_rng)
        for index, text in enumerate(texts)
    ]
    assert reward(["p"] * 30, images, text=texts) == [1.0] * 30


def test_the_value_is_1_minus_edits_per_letter_of_the_target(reward: ImageText) -> None:
    targets = ["CAT", "CAR", "CATS", "CT", "DOG", "C"]
    values = reward(["p"] * 6, [picture_of("CAT")] * 6, text=targets)
    assert values == pytest.approx([1, 2 / 3, 3 / 4, 1 / 2, 0, 0])  # never below 0


def published_reward(target: str, read: str) -> float:
    """The reward of `OcrScorer` of github.com/yifan123/flow_grpo."""
    target, read = target.replace(" ", "").lower(), read.replace(" ", "").lower()
    distance = 0 if target in read else edits(read, target)
    return 1 - min(distance, len(target)) / len(target)


def next_reading(texts: Iterator[str], image: np.ndarray, **flags: bool) -> SimpleNamespace:
    """A fake engine, which reads the next of `texts`."""
    return SimpleNamespace(txts=(next(texts),))


def test_inside_gives_the_published_reward_and_the_default_counts_extra_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = ["xxCATxx", "cat cat", "ca t", "CA", "dogs", "", "scatter"]
    for inside, expected in (
        (True, [published_reward("Cat", each) for each in readings]),
        (False, [0, 0, 1, 2 / 3, 0, 0, 0]),
    ):
        reward = ImageText(ImageText.Config(inside=inside))
        engine = partial(next_reading, iter(["", *readings]))  # the first at its start
        monkeypatch.setattr("rapidocr.RapidOCR", lambda params, engine=engine: engine)
        values = reward(["p"] * 7, [picture_of("A")] * 7, text=["Cat"] * 7)
        assert values == pytest.approx(expected)
    assert published_reward("Cat", "scatter") == 1.0


def test_the_engine_is_started_once_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[dict[str, object]] = []
    monkeypatch.setattr("rapidocr.RapidOCR", lambda params: starts.append(params) or Mock())
    reward = ImageText()
    assert starts == []
    reward.load()
    reward.load()
    assert len(starts) == 1

    def fail(params: object) -> None:
        raise RuntimeError("no model\nat all")

    monkeypatch.setattr("rapidocr.RapidOCR", fail)
    with pytest.raises(ValueError, match=r"'image_text': RapidOCR does not start: no model$"):
        ImageText().load()


def test_rows_without_a_target_and_pictures_without_text(reward: ImageText) -> None:
    logged: dict[str, Any] = {}
    blank = Image.new("RGB", (64, 32), "white")
    targets = [None, "", " ", float("nan"), "CAT"]
    values = reward(
        ["p"] * 5, [picture_of("CAT")] * 4 + [blank], text=targets, log_extra=logged.__setitem__
    )
    assert values == [None, None, None, None, 0.0]
    assert logged == {"read": ["CAT"] * 4 + [""]}


def test_ignore_case_and_ignore_space() -> None:
    image = picture_of("New York", (128, 32))
    for settings, target, expected in (
        ({}, "NEWYORK", 1.0),
        ({"ignore_case": False}, "NEWYORK", 1 - 5 / 7),
        ({"ignore_case": False}, "NewYork", 1.0),
        ({"ignore_space": False}, "new   york", 1.0),
        ({"ignore_space": False}, "newyork", 1 - 1 / 7),
    ):
        reward = ImageText(ImageText.Config.model_validate(settings))
        assert reward(["p"], [image], text=[target]) == [pytest.approx(expected)]


def test_detect_reads_lines_anywhere_in_order(reward: ImageText) -> None:
    image = Image.new("RGB", (320, 200), "white")
    canvas, font = ImageDraw.Draw(image), ImageFont.load_default(30)
    canvas.text((200, 24), "tea", font=font, fill="black")
    canvas.text((20, 20), "green", font=font, fill="black")
    canvas.text((90, 130), "please", font=font, fill="black")
    detecting = ImageText(ImageText.Config(detect=True, target="words", ignore_space=False))
    assert detecting(["p"], [image], words=["green tea please"]) == [1.0]
    # Two rewards with different settings do not affect each other.
    assert reward(["p"], [picture_of("CAT")], text=["CAT"]) == [1.0]
    assert detecting(["p"], [Image.new("RGB", (64, 64), "white")], words=["tea"]) == [0.0]


def test_coloured_and_light_letters_are_read(reward: ImageText) -> None:
    negative = Image.fromarray(255 - np.asarray(picture_of("PEN")))
    blue = Image.new("RGB", (64, 32), (250, 240, 200))
    ImageDraw.Draw(blue).text(
        (32, 16), "PEN", font=ImageFont.load_default(20), fill=(0, 0, 160), anchor="mm"
    )
    assert reward(["p"] * 2, [negative, blue], text=["PEN"] * 2) == [1.0, 1.0]


def test_the_engine_gets_bgr_bytes_and_every_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reward, calls = ImageText(ImageText.Config(detect=True)), []

    def engine(image: np.ndarray, **flags: bool) -> SimpleNamespace:
        calls.append((image.dtype, image.shape, image[0, 0].tolist(), flags))
        return SimpleNamespace(txts=None, boxes=None)

    monkeypatch.setattr("rapidocr.RapidOCR", lambda params: engine)
    assert reward(["p"], [Image.new("RGB", (6, 4), (255, 128, 0))], text=["A"]) == [0.0]
    flags = {"use_det": True, "use_cls": False, "use_rec": True}
    assert calls[1:] == [(np.uint8, (4, 6, 3), [0, 128, 255], flags)]


def test_full_width_letters_are_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = ImageText(ImageText.Config(ignore_case=False))
    engine = partial(next_reading, repeat("\uff21\uff19"))
    monkeypatch.setattr("rapidocr.RapidOCR", lambda params: engine)
    assert reward(["p"] * 2, [picture_of("A9")] * 2, text=["A9", "\uff21\uff19"]) == [1.0, 1.0]


MARKS = [
    "it\u2019s",
    "\u201ca\u201d \u2013 b",
    "rock \u2018n\u2019 roll",
    "co\u00adop",
    "1\u20442",
    "a \u2022 b",
]


@pytest.mark.parametrize("target", MARKS)
@pytest.mark.parametrize("read", ["as it is", "plain"])
def test_typographic_marks_are_read_as_plain_ones(
    target: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ["it's", '"a" - b', "rock 'n' roll", "coop", "1/2", "a · b"][MARKS.index(target)]
    engine = partial(next_reading, repeat(plain if read == "plain" else target))
    monkeypatch.setattr("rapidocr.RapidOCR", lambda params: engine)
    reward = ImageText(ImageText.Config(ignore_space=False))
    assert reward(["p"], [picture_of("A")], text=[target]) == [1.0]
    assert reward(["p"], [picture_of("A")], text=[plain + "x"])[0] < 1


def test_marks_in_a_picture(reward: ImageText) -> None:
    assert reward(["p"], [picture_of("it\u2019s", (96, 32))], text=["it\u2019s"]) == [1.0]


def test_targets_that_the_recogniser_cannot_write_do_not_count(reward: ImageText) -> None:
    russian, korean = "Привет", "한국어"
    targets = [russian, korean, "A🙂", "Cat"]
    assert reward(["p"] * 4, [picture_of("CAT")] * 4, text=targets) == [None, None, None, 1.0]
    for target in targets[:3]:
        with pytest.raises(ValueError, match=f"does not read '.*which are in '{target}'"):
            reward.check_row({"text": target})
    for target in ("Cat", "Żółć", "日本", "x² ﬁ", "", None):
        reward.check_row({"text": target})


def test_accents_may_be_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = partial(next_reading, repeat("Žółć"))
    monkeypatch.setattr("rapidocr.RapidOCR", lambda params: engine)
    for ignore, value in ((False, 0.75), (True, 1.0)):
        reward = ImageText(ImageText.Config(ignore_accents=ignore))
        assert reward(["p"], [picture_of("A")], text=["Żółć"]) == [value]


def test_the_recogniser_is_a_file_or_a_language(monkeypatch: pytest.MonkeyPatch) -> None:
    file = next((Path(rapidocr.__file__).parent / "models").glob("*rec*.onnx"))
    reward = ImageText(ImageText.Config(model=str(file)))
    assert reward(["p"], [picture_of("CAT")], text=["Cat"]) == [1.0]
    with pytest.raises(ValidationError, match=r"the file 'none\.onnx' does not exist"):
        ImageText.Config(model="none.onnx")
    with pytest.raises(ValueError, match=r"does not start: .*klingon"):
        ImageText(ImageText.Config(model="klingon")).load()
    settings: list[dict[str, Any]] = []
    monkeypatch.setattr("rapidocr.RapidOCR", lambda params: settings.append(params) or Mock())
    ImageText(ImageText.Config(model="cyrillic")).load()
    assert settings[0]["Rec.lang_type"] == "cyrillic"
    assert settings[0]["Rec.ocr_version"] == rapidocr.OCRVersion.PPOCRV5


def test_the_engine_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    ImageText()(["p"], [picture_of("A")], text=["A"])
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("RapidOCR").level == logging.CRITICAL


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("abc", "abc", 0),
        ("abc", "axc", 1),
        ("abc", "bc", 1),
        ("abc", "abcd", 1),
        ("kitten", "sitting", 3),
        ("ab", "ba", 2),
    ],
)
def test_edits(first: str, second: str, distance: int) -> None:
    assert edits(first, second) == distance


def test_edits_is_the_recursive_edit_distance() -> None:
    def recursive(first: str, second: str) -> int:
        if not first or not second:
            return len(first) + len(second)
        replaced = recursive(first[1:], second[1:]) + (first[0] != second[0])
        return min(replaced, recursive(first[1:], second) + 1, recursive(first, second[1:]) + 1)

    rng = random.Random(0)
    for _ in range(100):
        pair = ["".join(rng.choices("abc", k=rng.randrange(6))) for _ in range(2)]
        assert edits(*pair) == recursive(*pair)


def test_missing_columns_and_invalid_images_are_refused(reward: ImageText) -> None:
    with pytest.raises(
        ValueError, match="'image_text' needs the column 'text'; the columns are: title"
    ):
        reward(["p"], [picture_of("A")], title=["A"])
    with pytest.raises(ValueError, match="'image_text', completion 1: expected an image"):
        reward(["p"] * 2, [picture_of("A"), "A"], text=["A"] * 2)
    narrow = Image.new("RGB", (5000, 1))
    with pytest.raises(ValueError, match=r"completion 1: RapidOCR cannot read .* 5000 x 1 pixels"):
        reward(["p"] * 2, [picture_of("A"), narrow], text=["A"] * 2)
