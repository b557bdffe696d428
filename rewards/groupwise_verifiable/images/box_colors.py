"""Colours of objects, estimated from their boxes by a palette."""

from collections.abc import Sequence

import numpy as np

from groupwise_verifiable.images.colors import color_name
from groupwise_verifiable.images.detection import Box, Detection
from groupwise_verifiable.images.pixels import Pixels


class PaletteColors:
    """The palette's colour nearest to the median pixel of the central half of a box.

    It does not correct for light: white in the shade is gray, a dark blue is black.
    """

    def load(self) -> None:
        """Nothing to load."""

    def __call__(self, image: Pixels, objects: Sequence[Detection]) -> list[str]:
        """Returns the name of each object's colour; image: [H, W, 3] in [0, 1]."""
        return [color_name(_median(image, each.box)) for each in objects]


def _median(image: Pixels, box: Box) -> Pixels:
    """The median colour [3] of the box's middle, which has half its width and height."""
    left, top, right, bottom = box
    rows = _middle(top, bottom, image.shape[0])
    columns = _middle(left, right, image.shape[1])
    middle: Pixels = np.median(image[rows, columns].reshape(-1, 3), axis=0)
    return middle


def _middle(low: float, high: float, length: int) -> slice:
    """The pixels of the central half of an interval, at least one, inside the image."""
    quarter = (high - low) / 4
    first = min(max(round(low + quarter), 0), length - 1)
    return slice(first, max(first + 1, min(round(high - quarter), length)))
