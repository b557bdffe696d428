"""A reward for edited pictures that leave the rest of their source alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit.options import PathOrName
from groupwise_messages.attached import pictures_of
from groupwise_verifiable.images.clauses import included
from groupwise_verifiable.images.detection import Box, by_class
from groupwise_verifiable.images.pixels import Pixels, pixels
from groupwise_verifiable.images.shapes import ALIASES, find_shapes
from groupwise_verifiable.images.zero_shot import ZeroShotDetector
from groupwise_verifiable.models import shared

if TYPE_CHECKING:
    from PIL.Image import Image

_NAME = "unchanged"
_FREE = 128
"""Values of a mask from this one on are where the picture may change; white is 255."""
_GROWTH = 2
"""Times an object's area in the source that it may take in the result."""
Mask = NDArray[np.bool_]


class Settings(BaseModel):
    """Settings of the reward `unchanged`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mask: str | None = Field(
        default=None,
        description="Column with masks as large as the source, white where it may change.",
    )
    include: str | None = Field(
        default=None,
        description="Column with the objects that the edit is about, as of `image_contents`: the "
        "picture may change inside the boxes of their classes: all of the source's, and of the "
        "result's as many as there should be, each at most twice as large.",
    )
    detector: PathOrName = Field(
        default="shapes", description="What finds these objects, as of `image_contents`."
    )
    threshold: float = Field(
        default=0.3, ge=0, lt=1, description="Detections with a confidence below this are ignored."
    )
    fit: Literal["crop", "pad"] = Field(
        default="crop",
        description="How source and mask get the size of the result, as `policy.adapter.fit`.",
    )


class Unchanged:
    """How much of its source an edited picture leaves alone, 0.0 to 1.0.

    1 - RMSE of pixels in [0, 1] between source and result, where the edit is not about, which is
    1 - 10^(-PSNR / 20). The source is the first picture of a row, from which an autoencoder
    alone may take some hundredths; without `mask` and `include` the whole picture counts. None
    where all may change.
    """

    judges = False

    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings | None = None) -> None:
        self.config = config or self.Config()
        self._detector = None
        if self.config.include is not None and self.config.detector != "shapes":
            self._detector = shared(ZeroShotDetector, self.config.detector, None)

    def load(self) -> None:
        """Loads the detector, if it is a model."""
        if self._detector is not None:
            self._detector.load()

    @property
    def required_columns(self) -> Mapping[str, str]:
        named = {"mask": self.config.mask, "include": self.config.include}
        return {option: name for option, name in named.items() if name is not None}

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Returns a value for each image. Raises ValueError where a row has no source."""
        results = pixels(completions, reward=_NAME)
        names = {"image", "images", *self.required_columns.values()}
        own = {name: columns[name] for name in names if columns.get(name) is not None}
        rows = [
            {"prompt": prompt, **{name: column[row] for name, column in own.items()}}
            for row, prompt in enumerate(prompts)
        ]
        return [
            self._value(row, result, f"reward {_NAME!r}, sample {number}")
            for number, (row, result) in enumerate(zip(rows, results, strict=True))
        ]

    def _value(self, row: Mapping[str, Any], result: Pixels, where: str) -> float | None:
        sources = pictures_of(row)
        if not sources:
            raise ValueError(
                f"{where}: there is no source, expected a picture in the column 'image' or "
                f"'images', or in the prompt's messages"
            )
        source = pixels([self._fitted(sources[0], result)], reward=_NAME)[0]
        fixed = ~self._free(row, source, result, where)
        if not fixed.any():
            return None
        return 1.0 - float(np.sqrt(np.square(source - result, dtype=np.float64)[fixed].mean()))

    def _free(self, row: Mapping[str, Any], source: Pixels, result: Pixels, where: str) -> Mask:
        """[height, width], where the picture may change."""
        free = np.zeros(result.shape[:2], np.bool_)
        if self.config.mask is not None and row.get(self.config.mask) is not None:
            mask = self._fitted(row[self.config.mask], result).convert("L")
            free |= np.asarray(mask) >= _FREE
        if self.config.include is not None:
            place = f"{where}, column {self.config.include!r}"
            clauses = included(row.get(self.config.include), place)
            classes = {ALIASES.get(clause.label, clause.label) for clause in clauses}
            before, after = self._boxes(source, classes), self._boxes(result, classes)
            # Else a huge object, or many, would hide what else has changed.
            most = _GROWTH * max(map(_area, before), default=float(source.size))
            after = [box for box in after if _area(box) <= most]
            for box in [*before, *after[: sum(clause.count for clause in clauses)]]:
                free[_inside(box)] = True
        return free

    def _boxes(self, image: Pixels, classes: set[str]) -> list[Box]:
        if self._detector is None:
            found = find_shapes(image)
        else:
            found = self._detector(
                image, sorted(classes), threshold=self.config.threshold, overlap=0.5, most=100
            )
        objects = by_class(found)
        return [each.box for label in sorted(classes) for each in objects[label]]

    def _fitted(self, value: Any, result: Pixels) -> Image:
        """A picture in RGB of the result's size."""
        from PIL import ImageOps

        from groupwise_messages.images import opened

        image, (height, width) = opened(value), result.shape[:2]
        if self.config.fit == "pad":
            return ImageOps.pad(image, (width, height), color="white")
        return ImageOps.fit(image, (width, height))


def _inside(box: Box) -> tuple[slice, slice]:
    """Rows and columns of a box with its edges, which are soft: a twentieth more, at least a pixel,
    on each side."""
    left, top, right, bottom = box
    across, down = (max(1.0, 0.05 * size) for size in (right - left, bottom - top))
    rows = slice(max(0, int(top - down)), int(np.ceil(bottom + down)))
    return rows, slice(max(0, int(left - across)), int(np.ceil(right + across)))


def _area(box: Box) -> float:
    left, top, right, bottom = box
    return (right - left) * (bottom - top)
