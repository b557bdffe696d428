"""The colours of objects of which only the boxes are known."""

from collections.abc import Sequence

import numpy as np

from groupwise_verifiable.images.colors import color_name
from groupwise_verifiable.images.detection import Box, Detection
from groupwise_verifiable.images.pixels import Pixels


class PaletteColors:
    """The colour of the palette that is nearest to the median of the central half of a box.

    Shades are other colours to it: white in the shade is gray, a dark blue is black.
    """

    def load(self) -> None:
        """Loads nothing."""

    def __call__(self, image: Pixels, objects: Sequence[Detection]) -> list[str]:
        """Returns the name of each object's colour; image: [H, W, 3] in [0, 1]."""
        return [color_name(_median(image, each.box)) for each in objects]


def _median(image: Pixels, box: Box) -> Pixels:
    """The median colour [3] of the box's middle, half as wide and half as high."""
    left, top, right, bottom = box
    rows = _middle(top, bottom, image.shape[0])
    columns = _middle(left, right, image.shape[1])
    middle: Pixels = np.median(image[rows, columns].reshape(-1, 3), axis=0)
    return middle


def _middle(low: float, high: float, length: int) -> slice:
    """The pixels of the central half of an interval, at least one of them, inside the image."""
    quarter = (high - low) / 4
    first = min(max(round(low + quarter), 0), length - 1)
    return slice(first, max(first + 1, min(round(high - quarter), length)))
