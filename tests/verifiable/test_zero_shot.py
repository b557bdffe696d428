"""`ZeroShotDetector`, with a tiny untrained model of a real architecture."""

from __future__ import annotations

import gc
import sys
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.verifiable.test_reward_model import pickled
from transformers import AutoModelForZeroShotObjectDetection

from groupwise_verifiable.images.box_colors import PaletteColors
from groupwise_verifiable.images.classes import GENEVAL
from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.zero_shot import ZeroShotDetector, class_of

sys.path.insert(0, str(Path(__file__).parent))
import tiny_owl

ALL = {"threshold": 0.0, "overlap": 1.0, "most": 16}

# On an image of 60 x 40 an untrained OWL-ViT of 2 x 2 patches predicts four boxes of half its size
# around the lower right corners of its patches. Three of them extend beyond the image.
BOXES = {
    (15.0, 10.0, 45.0, 30.0): "red",
    (45.0, 10.0, 75.0, 30.0): "green",
    (15.0, 30.0, 45.0, 50.0): "blue",
    (45.0, 30.0, 75.0, 50.0): "yellow",
}


@pytest.fixture(scope="module")
def owl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("owl")
    tiny_owl.save(folder)
    return folder


@pytest.fixture
def four() -> np.ndarray:
    """A black image [40, 60, 3] with another colour in the middle of each box."""
    colors = {"red": (1, 0, 0), "green": (0, 0.6, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0)}
    image = np.zeros((40, 60, 3), np.float32)
    for (left, top, right, bottom), name in BOXES.items():
        image[int(top) + 5 : int(bottom) - 5, int(left) + 7 : int(right) - 7] = colors[name]
    return image


def test_boxes_colours_labels_and_order(owl: Path, four: np.ndarray) -> None:
    detector = ZeroShotDetector(str(owl), "cpu")
    detections = detector(four, ["cat", "dog"], **ALL)
    assert len(detections) == 4
    boxes = [tuple(round(edge, 1) for edge in each.box) for each in detections]
    assert dict(zip(boxes, PaletteColors()(four, detections), strict=True)) == BOXES
    assert {each.color for each in detections} == {None}
    assert {each.label for each in detections} <= {"cat", "dog"}
    scores = [each.score for each in detections]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    lowest_score = detections[-1].score
    assert detector(four, ["cat", "dog"], **{**ALL, "threshold": lowest_score}) == detections[:3]
    assert detector(four, [], **ALL) == []
    two = detector(four, ["cat"], threshold=0.0, overlap=1.0, most=2)
    assert two == detector(four, ["cat"], **ALL)[:2]


def test_a_label_of_some_words_is_the_only_class_that_has_them() -> None:
    classes = ["traffic light", "hot dog", "dog", "cup"]
    labels = ["Cup", "dog", "light", "traffic light", "hot", "dog cup", "", "cat"]
    assert [class_of(label, classes) for label in labels] == [
        *("cup", "dog", "traffic light", "traffic light", "hot dog"),
        *(None, None, None),
    ]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by the name of each model that is loaded."""
    names: list[str] = []
    real = AutoModelForZeroShotObjectDetection.from_pretrained
    monkeypatch.setattr(
        AutoModelForZeroShotObjectDetection,
        "from_pretrained",
        lambda name, **options: names.append(name) or real(name, **options),
    )
    return names


def test_the_model_is_loaded_once(owl: Path, four: np.ndarray, loads: list[str]) -> None:
    detector = ZeroShotDetector(str(owl), "cpu")
    assert loads == []
    assert detector(four, ["cat"], **ALL) == detector(four, ["cat"], **ALL)
    detector.load()
    assert loads == [str(owl)]


def test_pickled_weights_are_not_read(owl: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no weights as safetensors"):
        ZeroShotDetector(str(pickled(owl, tmp_path / "model")), "cpu").load()


def test_image_contents_with_a_zero_shot_detector(owl: Path, four: np.ndarray) -> None:
    settings = {"detector": str(owl), "threshold": 0.0, "device": "cpu", "others": []}
    reward = ImageContents(ImageContents.Config.model_validate(settings))
    image = Image.fromarray((four * 255).astype(np.uint8))
    enough, more = [{"class": "cat", "count": 4}], [{"class": "cat", "count": 5}]
    assert reward(["p"] * 2, [image, image], include=[enough, more]) == [1.0, 0.0]
    red = [{"class": "cat", "count": 4, "color": "red"}]
    partial = ImageContents(ImageContents.Config.model_validate({**settings, "mode": "partial"}))
    assert partial(["p"], [image], include=[red]) == [pytest.approx((1 + 1 / 4) / 2)]


def test_objects_of_other_classes_are_not_counted_as_the_row_s(owl: Path, four: np.ndarray) -> None:
    """Asked for one class alone the detector takes each of four things for it; asked for others,
    too, each for what it is most like, so that surplus is not over-counted."""
    image = Image.fromarray((four * 255).astype(np.uint8))
    detector = ZeroShotDetector(str(owl), "cpu")
    short = sorted(name for name in GENEVAL if len(name) < 5)
    found = ((pair, [x.label for x in detector(four, pair, **ALL)]) for pair in pairwise(short))
    others, labels = next(each for each in found if len({*each[1]}) == 2)
    kind, count = labels[0], labels.count(labels[0])
    for given, seen in ((others, count), ([], len(labels))):
        settings = {"detector": str(owl), "threshold": 0.0, "overlap": 1.0, "device": "cpu"}
        settings |= {"mode": "flow_grpo", "others": list(given)}
        reward = ImageContents(ImageContents.Config.model_validate(settings))
        (value,) = reward(["p"], [image], include=[[{"class": kind, "count": count}]])
        assert value == 1 - abs(count - seen) / count


@pytest.mark.slow
def test_rewards_with_the_same_model_share_it_until_the_last_is_deleted(
    owl: Path, four: np.ndarray, loads: list[str]
) -> None:
    def reward(**settings: Any) -> ImageContents:
        options = {"detector": str(owl), "threshold": 0.0, "others": [], **settings}
        return ImageContents(ImageContents.Config.model_validate(options))

    trained, watched = reward(), reward(mode="geneval", overlap=1.0, max_objects=2)
    elsewhere = reward(device="meta")
    for each in (trained, watched):
        each.load()
    assert loads == [str(owl)]
    assert elsewhere._detector is not trained._detector
    image = Image.fromarray((four * 255).astype(np.uint8))
    three = {"include": [[{"class": "cat", "count": 2}]]}
    assert trained(["p"], [image], **three) == [0.0]  # this one detects four
    assert watched(["p"], [image], **three) == [1.0]
    reference = weakref.ref(trained._detector)
    del trained
    gc.collect()
    assert reference() is not None
    del watched, each
    gc.collect()
    assert reference() is None


def test_a_missing_detector_is_refused_and_one_that_finds_nothing_warns(
    owl: Path, four: np.ndarray
) -> None:
    with pytest.raises(ValueError, match=r"no such file or folder as '.*nowhere'"):
        ImageContents(ImageContents.Config(detector=str(owl / "nowhere")))
    reward = ImageContents(
        ImageContents.Config(detector=str(owl), threshold=0.999999, device="cpu", others=[])
    )
    image = Image.fromarray((four * 255).astype(np.uint8))
    with pytest.warns(
        UserWarning, match=r"in any of 2 pictures: .* its threshold of 0.999999 too high"
    ):
        reward(["p"] * 2, [image] * 2, include=[[{"class": "cat"}]] * 2)
