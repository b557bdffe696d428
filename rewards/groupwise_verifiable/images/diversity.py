"""A reward for images that differ from the others of their group."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from groupwise_verifiable.columns import members
from groupwise_verifiable.images.pixels import Pixels, pixels


class ImageDiversity:
    """Mean distance of a picture to its group, 0.0 to 1.0: watch it to notice a collapse.

    The distance of two images is the root mean square difference of their pixels, values in [0, 1].
    None for a single image. Use it with weight 0 to notice mode
    collapse (it falls), and with a weight above 0 to counter it.
    """

    judges = False

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        groups: Sequence[int],
        **columns: Any,
    ) -> list[float | None]:
        """Returns a value for each image; a ValueError where a group's images differ in size."""
        images = pixels(completions, reward="image_diversity")
        values: list[float | None] = [None] * len(images)
        for rows in members(groups):
            for row, distance in zip(rows, _distances([images[r] for r in rows]), strict=True):
                values[row] = distance
        return values


def _distances(group: Sequence[Pixels]) -> list[float | None]:
    """The mean distance of each to the others."""
    if len(group) == 1:
        return [None]
    shapes = {image.shape for image in group}
    if len(shapes) > 1:
        sizes = " and ".join(sorted(f"{width}x{height}" for height, width, _ in shapes))
        raise ValueError(
            f"reward 'image_diversity': the images of a group must have one size, found {sizes}"
        )
    totals = [0.0] * len(group)
    for one, other in combinations(range(len(group)), 2):  # two at a time, for large images
        difference = np.subtract(group[one], group[other], dtype=np.float64)
        distance = float(np.sqrt(np.square(difference).mean()))
        totals[one] += distance
        totals[other] += distance
    return [total / (len(group) - 1) for total in totals]
